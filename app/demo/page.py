"""The page: a tab for each kind of model that is there."""

from __future__ import annotations

import gradio as gr

from app.demo.ask import AskTab
from app.demo.models import ASK, READ, WRITE, Models, models_of
from app.demo.read import ReadTab
from app.demo.write import WriteTab

TABS = {ASK: AskTab, READ: ReadTab, WRITE: WriteTab}
CSS = """
.gradio-container { max-width: 1180px !important; margin: 0 auto !important; }
.timing { color: var(--body-text-color-subdued); font-size: var(--text-sm); min-height: 1.6em; }
.page { padding: var(--spacing-lg) var(--spacing-xl); }
"""


def theme() -> gr.themes.Base:
    """Fonts of the system: nothing is fetched."""
    return gr.themes.Default(
        primary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
        spacing_size="sm",
    )


def build_page(models: Models) -> gr.Blocks:
    """Tabs without a model are left out."""
    with gr.Blocks(title="vlm demo", analytics_enabled=False) as page:
        gr.Markdown(f"### vlm demo\n{', '.join(models)}")
        with gr.Tabs():
            for name, kind in TABS.items():
                if own := models_of(name, models):
                    tab = kind(own)
                    with gr.Tab(tab.title, id=name):
                        tab.build()
    return page.queue(default_concurrency_limit=None)
