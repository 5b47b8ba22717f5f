"""FairSeq's models as they are published: archives, Moses and BPE or SentencePiece, ensembles, what trainings leave."""

from __future__ import annotations

import io
import sys
import tarfile
import types

import pytest
import torch
import transformers

import vlm
from llm_engines.converters.fairseq_tokenizer import SPECIAL, TextFiles, tokenizer_files
from llm_engines.families.fairseq import tokenizer_rules
from tests.kits.cli_kit import call
from tests.kits.publications.fairseq_kit import WORDS, Published
from tests.kits.publications.fairseq_texts import CODES, ENTRIES, EXAMPLES
from tests.kits.publications.nemo_kit import sentencepiece_file
from vlm.artifacts import archives
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError, VlmWarning
from vlm.processing.text.stream import TextStream
from vlm.processing.text.tokenization import Tokenizer

sacremoses = pytest.importorskip("sacremoses", reason="FairSeq's published models take texts that Moses has split")
IDS = {entry: i for i, entry in reversed(list(enumerate([*SPECIAL, *ENTRIES])))}
NAME = "wmt16.en-fr.joined-dict.transformer"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model():
    return Published(seed=11, entries=ENTRIES, share_all_embeddings=True, arch="transformer_vaswani_wmt_en_de_big")


def published(model, folder, **written):
    model.write(folder, **written)
    (folder / "bpecodes").write_text(CODES)
    return folder


def packed(folder, archive, mode):
    with tarfile.open(archive, f"w:{mode}") as tar:
        tar.add(folder, folder.name)
    return archive


def pieces_to_text(tokens: list[int]) -> str:
    """As FairSeq's hub interface decodes: the dictionary's entries, BPE undone, Moses undone."""
    entries = [*SPECIAL, *ENTRIES]
    line = (" ".join(entries[i] for i in tokens if i not in (0, 1, 2, 3)) + " ").replace("@@ ", "").rstrip()
    return sacremoses.MosesDetokenizer("fr").detokenize(line.split())


def tokenizer_of(folder, options, out) -> Tokenizer:
    """Returns the tokenizer that a published folder's files become."""
    entries, text = [*SPECIAL, *ENTRIES], TextFiles.from_folder(folder, options)
    tokenizer_files(folder, entries, entries, out=out, text=text)
    return Tokenizer.from_dir(out, tokenizer_rules)


def test_texts_become_the_ids_that_fairseq_looks_up(model, tmp_path):
    tokenizer = tokenizer_of(published(model, tmp_path / NAME), model.options, tmp_path)
    for source, pieces in EXAMPLES.items():
        assert tokenizer.encode(source) == [IDS.get(piece, 3) for piece in pieces.split()], source
    known = [source for source, pieces in EXAMPLES.items() if set(pieces.split()) <= IDS.keys()]
    assert len(known) == 3 and tokenizer.encode_source(known[0])[-1] == 2
    assert tokenizer.encode_source("Hello, world! " * 3, limit=5) == [*tokenizer.encode("Hello, world!")[:4], 2]


@pytest.mark.parametrize("ending", ["bz2", "gz"])
def test_archive_to_translation(model, tmp_path, ending):
    folder = published(model, tmp_path / NAME)
    archive = packed(folder, tmp_path / f"{NAME}.tar.{ending}", ending)
    text = "Hello, world! The machines' cost; they don't know."
    pieces = "H@@ ell@@ o , world ! The machines &apos; cost ; they don &apos;t k@@ n@@ o@@ w .".split()
    ids = [IDS[piece] for piece in pieces]
    tokens, _ = model.greedy([*ids, 2], 9)
    done = call("translate", text, "--model", archive, "--max-new-tokens", 9, "--device", "cpu")
    assert (done.exit_code, done.stdout) == (0, pieces_to_text(tokens) + "\n")
    assert "warning" not in done.stderr
    unknown = call("translate", "Hello, 日本", "--model", archive, "--max-new-tokens", 2, "--device", "cpu")
    assert "\nvlm: warning: the text 'Hello , 日 本' has '日', '本', not in the model's dict" in f"\n{unknown.stderr}"
    assert vlm.load(folder, device="cpu").generate(text, max_new_tokens=9).token_ids == tokens
    if ending == "bz2":
        done = call("convert", archive, "-o", tmp_path / "ckpt")
        assert done.exit_code == 0 and done.stdout.strip() == str(tmp_path / "ckpt")
        assert "Moses (en to fr), BPE codes" in call("inspect", tmp_path / "ckpt").stdout
        done = call("translate", text, "--model", tmp_path / "ckpt", "--max-new-tokens", 9, "--device", "cpu")
        assert done.stdout == pieces_to_text(tokens) + "\n"


def test_what_is_split_already_is_left_as_it_is(model, tmp_path):
    folder = published(model, tmp_path / NAME)
    done = call("convert", folder, "-o", tmp_path / "ckpt", "--tokenizer", "none")
    assert done.exit_code == 0, done.stderr
    tokenizer = Tokenizer.from_dir(tmp_path / "ckpt" / "processor", tokenizer_rules)
    assert tokenizer.encode("don &apos;t") == [IDS["don"], IDS["&apos;t"]]
    done = call("convert", folder, "-o", tmp_path / "other", "--tokenizer", "nltk")
    assert done.exit_code == 2 and "its tokenizer is 'nltk', supported are moses" in done.stderr
    done = call("convert", "mini-t5", "-o", tmp_path / "other", "--tokenizer", "none")
    assert done.exit_code == 2 and "--tokenizer is for FairSeq's models" in done.stderr


def test_outputs_stream_as_they_are_joined(model, tmp_path):
    tokenizer = tokenizer_of(published(model, tmp_path / NAME), {}, tmp_path)
    line = "&quot; The l@@ ow@@ e cost , &quot; M@@ . Smith pa@@ t &apos;s @-@ new@@ s ( he ) . H@@ ell@@ o world !"
    ids = [
        IDS.get(piece, IDS["@-@"] if piece == "@-@" else 3) for piece in line.split() if piece in IDS or piece == "@-@"
    ]
    for tokens in (ids, ids[:7], [IDS["the"], 2]):
        stream = TextStream(tokenizer)
        pushed = [stream.push((token,), last=i == len(tokens) - 1) for i, token in enumerate(tokens)]
        assert "".join(pushed) == tokenizer.decode(tokens)
    assert sum(map(bool, pushed)) == 1 and tokenizer.decode(ids).startswith('"The lowe cost,"')


def test_unknown_words_are_said_a_few_times(model, tmp_path):
    tokenizer = tokenizer_of(published(model, tmp_path / NAME), {}, tmp_path)
    with pytest.warns(VlmWarning) as told:
        for number in range(9):
            tokenizer.encode_source(f"the 日本 costs {number}")
    messages = [str(warning.message) for warning in told]
    assert len(messages) == 5 and "'日本'" not in messages[0] and "'日'" in messages[0] and "'本'" in messages[0]
    assert [m.endswith("further texts with such words are not named.") for m in messages] == [False] * 4 + [True]


def test_what_moses_needs_is_said_before_the_work(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    done = call("convert", published(model, tmp_path / NAME), "-o", tmp_path / "out")
    assert done.exit_code == 2 and "pip install 'vlm-runtime[fairseq]'" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(kind, tmp_path, monkeypatch):
    library = pytest.importorskip("sentencepiece")
    # a function, unless something has imported the module of its name before
    monkeypatch.setattr(transformers, "convert_slow_tokenizer", lambda tokenizer: tokenizer)
    folder = tmp_path / "wmt20.en-fr.single"
    made = sentencepiece_file(tmp_path, kind)
    theirs = library.SentencePieceProcessor(model_file=str(made))
    held = [
        theirs.id_to_piece(i) for i in range(theirs.vocab_size()) if not theirs.is_control(i) and i != theirs.unk_id()
    ]
    entries = [*reversed(held[3:]), "madeupword0000"]  # in an order of its own, three pieces short, one more
    model = Published(seed=3, entries=entries, separate=True, tokenizer="space", bpe="sentencepiece")
    model.write(folder, newer=True)
    made.rename(folder / "sentencepiece.bpe.model")
    (folder / "bpecodes").write_text("not for this model")
    pipe = vlm.load(folder, device="cpu")
    ids = {entry: i for i, entry in enumerate([*SPECIAL, *entries])}
    for text in ("the house is small", "The  old boat , is in   the harbour. ", "xyz </s> the 日本", "ﬁne ½"):
        want = [*(ids.get(piece, 3) for piece in theirs.encode(text, out_type=str)), 2]
        assert pipe.tokenizer.encode_source(text) == want, text
        tokens, _ = model.greedy(want, 8)
        out = pipe.generate(text, max_new_tokens=8)
        assert out.token_ids == tokens
        line = "".join([*SPECIAL, *entries][i] for i in tokens if i > 3)
        assert out.text.strip() == line.replace("▁", " ").strip()


def pieces_model(tmp_path, tokens, **options):
    """A folder with a SentencePiece model whose dictionary's file lacks the languages' tokens, and its entries."""
    library = pytest.importorskip("sentencepiece")
    made = sentencepiece_file(tmp_path, "unigram")
    theirs = library.SentencePieceProcessor(model_file=str(made))
    held = [theirs.id_to_piece(i) for i in range(3, theirs.vocab_size())]
    model = Published(seed=7, entries=[*held, *tokens], unlisted=len(tokens), share_all_embeddings=True, **options)
    folder = model.write(tmp_path / "model")
    made.rename(folder / "sentence.bpe.model")
    entries = [*SPECIAL, *held, *tokens]
    ids = [entries.index(piece) for piece in theirs.encode("the house is small", out_type=str)]
    return folder, model, entries, ids


def test_mbart_names_languages_after_the_text(tmp_path):
    tokens = ["[en_XX]", "[fr_XX]", "[ro_RO]", "<mask>"]
    folder, model, entries, ids = pieces_model(
        tmp_path, tokens, arch="mbart_large", task="translation_from_pretrained_bart", langs="en_XX,fr_XX,ro_RO",
        source_lang="en_XX", target_lang="ro_RO", encoder_normalize_before=True, decoder_normalize_before=True,
        layernorm_embedding=True, encoder_learned_pos=True, decoder_learned_pos=True, activation_fn="gelu",
    )  # fmt: skip
    (folder / "dict.en.txt").rename(folder / "dict.en_XX.txt")
    (folder / "dict.fr.txt").rename(folder / "dict.ro_RO.txt")
    pipe = vlm.load(folder, device="cpu")
    english, french, romanian, _ = (entries.index(token) for token in tokens)
    for target, options in ((romanian, {}), (french, {"tgt_lang": "fr_XX"}), (romanian, {"src_lang": "en_XX"})):
        tokens, _ = model.greedy([*ids, 2, english], 8, start=(target,))
        assert pipe.generate(text="the house is small", max_new_tokens=8, **options).token_ids == tokens
    assert pipe.tokenizer.decode([romanian, *ids, 2, romanian]) == "the house is small"


def test_m2m_names_languages_before_the_text(tmp_path):
    tokens = ["__en__", "__fr__", "__de__"]
    folder, model, entries, ids = pieces_model(
        tmp_path, tokens, task="translation_multi_simple_epoch", langs=["en", "fr", "de"], source_lang=None,
        target_lang=None, langtoks={"main": ("src", "tgt")}, lang_tok_style="multilingual",
    )  # fmt: skip
    (folder / "dict.fr.txt").unlink()
    (folder / "dict.en.txt").rename(folder / "dict.txt")
    english, _, german = (entries.index(token) for token in tokens)
    want, _ = model.greedy([english, *ids, 2], 7, start=(2, german))
    given = ("the house is small", "--model", folder, "--device", "cpu", "--max-new-tokens", 8)
    done = call("translate", *given, "--src-lang", "en", "--tgt-lang", "de")
    assert done.exit_code == 0, done.stderr
    pipe = vlm.load(folder, device="cpu")
    out = pipe.generate(text="the house is small", src_lang="en", tgt_lang="de", max_new_tokens=8)
    assert out.token_ids == [german, *want] and done.stdout == out.text + "\n"
    done = call("translate", *given, "--src-lang", "xx", "--tgt-lang", "de")
    assert done.exit_code == 2 and "language 'xx' is unknown; this model knows de, en, fr" in done.stderr


def test_an_ensemble_gives_its_first_model(model, tmp_path):
    folder = published(model, tmp_path / NAME)
    (folder / "model.pt").rename(folder / "wmt18.model2.pt")
    (folder / "wmt18.model10.pt").write_bytes(b"never read")
    done = call("convert", packed(folder, tmp_path / "wmt18.en-fr.ensemble.tar.gz", "gz"), "-o", tmp_path / "out")
    assert done.exit_code == 0 and "an ensemble of 2 models; wmt18.model2.pt alone is taken" in done.stderr
    assert "wmt18.model2.pt" in call("inspect", tmp_path / "out").stdout


def test_languages_out_of_the_folder_name(model, tmp_path):
    options, model.options = model.options, {k: v for k, v in model.options.items() if not k.endswith("_lang")}
    try:
        folder = published(model, tmp_path / NAME)
        assert "Moses (en to fr)" in convert_folder(folder, tmp_path / "out").source
        folder.rename(tmp_path / "unnamed")
        with pytest.raises(CheckpointError, match=r"lacks the encoder's dictionary dict.<language>.txt; it holds dict"):
            convert_folder(tmp_path / "unnamed", tmp_path / "out")
    finally:
        model.options = options


def test_objects_that_a_training_leaves_do_nothing(model, tmp_path, monkeypatch):
    """Meters of FairSeq, and a configuration of OmegaConf's nodes."""
    module, nodes = types.ModuleType("fairseq.meters"), types.ModuleType("omegaconf.dictconfig")
    module.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    for name in ("DictConfig", "AnyNode"):
        setattr(nodes, name, type(name, (), {"__module__": "omegaconf.dictconfig"}))
    for name, made in (("fairseq", types.ModuleType("fairseq")), ("fairseq.meters", module),
                       ("omegaconf", types.ModuleType("omegaconf")), ("omegaconf.dictconfig", nodes)):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, made)

    def node(value):
        inside = {"_content": {k: node(v) for k, v in value.items()}} if isinstance(value, dict) else {"_val": value}
        found = nodes.DictConfig() if isinstance(value, dict) else nodes.AnyNode()
        found.__dict__ |= inside | {"_metadata": {"ref_type": dict}, "_parent": None}
        return found

    folder = published(model, tmp_path / NAME)
    content = torch.load(folder / "model.pt", weights_only=False)
    options = vars(content["args"])
    task = {"_name": "translation", **{k: options.pop(k) for k in ("source_lang", "target_lang")}}
    cfg = {"task": task, "model": options | {"_name": options["arch"]}, "tokenizer": None}
    meter = module.AverageMeter()
    meter.__dict__ |= {"avg": 1.5, "count": 3}
    content |= {"args": None, "cfg": node(cfg), "extra_state": {"train_meters": {"loss": meter}}}
    torch.save(content, folder / "model.pt")
    for name in ("fairseq", "fairseq.meters", "omegaconf", "omegaconf.dictconfig"):
        monkeypatch.delitem(sys.modules, name)
    assert convert_folder(folder, tmp_path / "out").config("encoder")["hidden_size"] == 16


def member(tar, name, data=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(data))


HOSTILE = {
    "lies outside of it": lambda tar: member(tar, "../model.pt"),
    "member /tmp/model.pt lies outside": lambda tar: member(tar, "/tmp/model.pt"),
    "is a link or device": lambda tar: member(tar, "m/model.pt", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "member m/dict.en.txt is a link": lambda tar: member(tar, "m/dict.en.txt", b"", type=tarfile.LNKTYPE, linkname="a"),
    "holds two files model.pt": lambda tar: (member(tar, "a/model.pt"), member(tar, "b/model.pt")),
    "unpacks to far more than its size": lambda tar: member(tar, "m/notes", b"0" * 5000),
    "holds no FairSeq model": lambda tar: member(tar, "gpt2/config.json", b"{}"),
}


@pytest.mark.parametrize(("says", "fill"), HOSTILE.items(), ids=HOSTILE)
def test_hostile_archives(says, fill, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SMALL", 3000)
    monkeypatch.setattr(archives, "LARGEST_GROWTH", 2)
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        fill(tar)
    with pytest.raises(CheckpointError, match=says):
        convert_folder(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (tmp_path / "model.pt").exists()


def test_a_damaged_archive_goes_on_where_it_broke_off(model, tmp_path):
    folder = published(model, tmp_path / NAME)
    archive = packed(folder, tmp_path / f"{NAME}.tar.bz2", "bz2")
    whole, broken = archive.read_bytes(), tmp_path / "broken.tar.bz2"
    for data in (b"no archive", whole[: len(whole) // 2], whole[:100] + b"\0" * 50 + whole[150:]):
        broken.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"broken\.tar\.bz2 is no tar archive, damaged or truncated"):
            convert_folder(broken, tmp_path / "out")
    first = archives.unpacked(archive, lambda name: name == "bpecodes")
    (first / archives.DONE).unlink()
    stamp = (first / "bpecodes").stat().st_mtime_ns
    assert archives.unpacked(archive, lambda name: True) == first
    assert (first / "bpecodes").stat().st_mtime_ns == stamp and (first / "model.pt").is_file()
    assert sorted(p.name for p in first.iterdir()) == [
        ".complete",
        "bpecodes",
        "dict.en.txt",
        "dict.fr.txt",
        "model.pt",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arch": "fconv_wmt_en_de"}, r"its arch is 'fconv_wmt_en_de', a convolutional network; supported are"),
        ({"arch": "camembert_base"}, "'camembert_base', an encoder"),
        ({"arch": "bart_large"}, r"'bart_large', which Hugging Face has converted \(facebook/bart-large\)"),
        ({"arch": "mbart_large"}, "mbart-large-50"),
        ({"arch": "transformer_lm_wiki103"}, "a language model"),
        (
            {"task": "multilingual_translation", "langs": "en,fr"},
            r"its languages in a way that is not supported: task is",
        ),
        (
            {
                "task": "translation_multi_simple_epoch",
                "langs": ["en", "fr"],
                "encoder_langtok": "tgt",
                "decoder_langtok": True,
            },
            r"langtoks are \['tgt', 'tgt'\], supported is",
        ),
        ({"task": "translation_multi_simple_epoch", "encoder_langtok": "src", "decoder_langtok": True}, "lack langs"),
        ({"bpe": "gpt2"}, r"its bpe is 'gpt2', supported are fastbpe, subword_nmt, sentencepiece"),
        ({"tokenizer": {"_name": "nltk"}}, "its tokenizer is 'nltk'"),
        ({"adaptive_softmax_cutoff": "1000,2000"}, "adaptive_softmax_cutoff is '1000,2000'"),
    ],
)
def test_other_networks_are_named(options, says, tmp_path):
    folder = Published(entries=WORDS, **options).write(tmp_path / "model")
    with pytest.raises(ConfigError, match=says) as told:
        convert_folder(folder, tmp_path / "out")
    assert str(told.value).count("\n") == 0 and str(told.value).endswith(".")
