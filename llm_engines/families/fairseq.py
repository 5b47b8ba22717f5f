"""FairSeq's translation transformers."""

from __future__ import annotations

from pathlib import Path

from vlm.registry.spec import ConverterRef, FamilySpec, Role

TAR_ENDINGS = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tbz", ".tbz2", ".tgz", ".txz")


def _is_fairseq(path: Path) -> bool:
    if path.is_file():
        return path.name.lower().endswith(TAR_ENDINGS)
    has_dictionary = (path / "dict.txt").is_file() or any(path.glob("dict.*.txt"))
    return has_dictionary and any(path.glob("*.pt")) and not (path / "config.json").exists()


CONVERTER = ConverterRef("fairseq", "llm_engines.converters.fairseq:convert", _is_fairseq, options=("tokenizer",))


FAIRSEQ = FamilySpec(
    name="fairseq",
    summary="Translation: FairSeq's transformers, archives or folders (.pt, dict.*.txt, BPE or SentencePiece)",
    roles={"encoder": Role("bart-encoder"), "decoder": Role("bart")},
    matches=lambda config: False,  # its folders have no config.json
    inputs=("text",),
)
