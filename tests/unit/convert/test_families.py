"""Families are local: vlm knows none of them, and to list them costs no heavy import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.spec import FamilySpec, Role

FOLDERS = sorted(path.parent for path in (ROOT / "vlm").rglob("__init__.py"))
NAMES = re.compile(
    r"nougat|mbart|nllb|byt5|llava|vicuna|\bvila|blip|donut|moses|fairseq|trocr|texify|siglip|clip_?(image|vision)|swin"
    r"|dolly|florence|marian(?!_)|m2m_?100|pegasus", re.IGNORECASE,
)  # fmt: skip
# what people read, in words: file -> what names a family there
SENTENCES = {
    "vlm/build/locate.py": "a FairSeq or .nemo archive",
    "vlm/registry/unsupported.py": "Marian program",
    "vlm/requests/sampling_options.py": "mBART-50: the target's language",
}


class _WithoutDocstrings(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node


def code_of(file: Path) -> str:
    """Returns a module's code without comments and docstrings."""
    return ast.unparse(_WithoutDocstrings().visit(ast.parse(file.read_text())))


def families_in(file: Path) -> list[str]:
    allowed = SENTENCES.get(file.relative_to(ROOT).as_posix())
    lines = [line for line in code_of(file).splitlines() if allowed is None or allowed not in line]
    return [line.strip() for line in lines if NAMES.search(line)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_vlm_names_no_family(folder):
    named = {file.name: lines for file in folder.glob("*.py") if (lines := families_in(file))}
    assert not named, "what is one family's belongs into its file in families/"


def test_a_name_is_found_and_a_docstring_is_none(tmp_path):
    (tmp_path / "a.py").write_text('"""Nougat."""\nKIND = "NougatImageProcessor"  # of Nougat\n')
    assert NAMES.search(code_of(tmp_path / "a.py")) and '"""' not in code_of(tmp_path / "a.py")
    (tmp_path / "a.py").write_text('"""Nougat."""\n\ndef f():\n    """Llava."""\n    return 1  # Nougat\n')
    assert not NAMES.search(code_of(tmp_path / "a.py"))


def test_families_are_listed_without_heavy_imports():
    asked = (
        "import sys\nfrom vlm.registry.catalogs import converters, families\nassert families() and converters()\n"
        "print(sorted({'torch', 'transformers', 'timm', 'PIL', 'tokenizers', 'sacremoses'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


def test_a_family_that_sees_needs_an_image_processor():
    parts = {"name": "eyes", "summary": "", "matches": lambda config: False, "inputs": ("image",)}
    with pytest.raises(ValueError, match="the family eyes has a visual role, but no image processor"):
        FamilySpec(roles={"visual": Role("eye")}, **parts)
    spec = ImageProcessorSpec("ViTImageProcessor")
    assert FamilySpec(roles={"visual": Role("eye")}, image_processors=(spec,), **parts).image_processors == (spec,)
