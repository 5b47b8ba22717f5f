"""The page: a tab for each kind of model that is there."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio import themes

from vlm_app.demo.answers import shown_error
from vlm_app.demo.ask import AskTab
from vlm_app.demo.models import ASK, READ, WRITE, Models, models_of
from vlm_app.demo.read import ReadTab
from vlm_app.demo.write import WriteTab

KEPT = (3600, 86400)  # uploads: looked through every hour, deleted after a day and at the end
TABS = {ASK: AskTab, READ: ReadTab, WRITE: WriteTab}
CSS = """
.gradio-container, .gradio-container main { width: 100%; max-width: 1180px !important; margin: 0 auto !important; }
.timing *, .about * { color: var(--neutral-500) !important; font-size: var(--text-sm); }
.prose.timing { min-height: 1.6em; }
.timing .clear-status, .timing .error, .timing:has(.error) .prose { display: none; }
.block.page { padding: var(--spacing-xl) var(--spacing-xxl); }
.chat .message img { max-height: 200px; width: auto; }
.chat .message-buttons-right, .chat .message-buttons-left { display: none; }
.scenes img { max-height: 64px; max-width: 64px; }
"""
ABOUT = {  # what the packaged models are good for; they answer all the same
    "mini-llava": "knows pictures of plain shapes and signs, and no photographs",
    "mini-blip2": "knows them too, and hears each question by itself",
    "mini-nougat": "reads pages of up to about 300 ASCII characters",
    "mini-t5": "translates simple sentences, numbers, dates and times, and summarizes notices",
}


class Page(gr.Blocks):
    """Tells what is wrong with values that its controls do not give to who sent them, and not to its terminal."""

    async def preprocess_data(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().preprocess_data(*arguments, **options)
        except gr.Error as error:
            raise shown_error(str(error.message)) from None
        except Exception as error:
            raise shown_error(f"what was sent is not what the page sends: {error}".splitlines()[0]) from None


def theme() -> themes.Base:
    """Fonts of the system: nothing is fetched."""
    return themes.Default(
        primary_hue="blue",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
        spacing_size="sm",
    )


def build_page(models: Models) -> gr.Blocks:
    """Tabs without a model are left out."""
    with Page(title="vlm demo", analytics_enabled=False, delete_cache=KEPT) as page:
        gr.Markdown("### vlm demo")
        with gr.Tabs():
            for name, kind in TABS.items():
                if own := models_of(name, models):
                    tab = kind(own)
                    with gr.Tab(tab.title, id=name):
                        gr.Markdown(_about(own), elem_classes="about")
                        tab.build()
    return page.queue(default_concurrency_limit=None)


def _about(models: Models) -> str:
    return "; ".join(f"**{name}** {ABOUT[name]}" if name in ABOUT else f"**{name}**" for name in models)
