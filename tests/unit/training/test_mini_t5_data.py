"""mini-t5's language, split and papers. The expected German is written by hand, not taken from the code."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from transformers import T5ForConditionalGeneration

from tests.checkout import ROOT
from training.t5 import evaluate, tasks, tokens
from training.t5.language import numbers, times
from training.t5.language.clause import Clause
from training.t5.language.lexicon import adjective, noun, verb
from training.t5.language.phrases import Shape, is_novel, name, pronoun
from training.t5.model import SCALE, Trainer, build, fold_scale
from training.t5.notice_kinds import KINDS
from vlm.processing.text.tokenization import Tokenizer

ASSET = ROOT / "vlm" / "assets" / "mini-t5"


# --- numbers, dates, times, prices ---
@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred one", "einhunderteins"),
        (212, "two hundred twelve", "zweihundertzwölf"),
        (1000, "one thousand", "eintausend"),
        (1984, "one thousand nine hundred eighty-four", "eintausendneunhundertvierundachtzig"),
        (21_000, "twenty-one thousand", "einundzwanzigtausend"),
        (101_000, "one hundred one thousand", "einhunderteintausend"),
        (1_000_000, "one million", "eine Million"),
        (1_001_101, "one million one thousand one hundred one", "eine Million eintausendeinhunderteins"),
        (21_000_001, "twenty-one million one", "einundzwanzig Millionen eins"),
        (
            999_999_999,
            "nine hundred ninety-nine million nine hundred ninety-nine thousand nine hundred ninety-nine",
            "neunhundertneunundneunzig Millionen neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_number_words(n, english, german):
    assert (numbers.english(n), numbers.german(n)) == (english, german)


def german_value(text: str) -> int:
    """Reads German number words, by a way of its own: from the left, greedily."""
    units = {w: i for i, w in enumerate(numbers.SMALL["de"])} | {"ein": 1, "eine": 1}
    units |= {w: 10 * i for i, w in enumerate(numbers.TENS["de"]) if i > 1}
    words = sorted(units, key=len, reverse=True)
    total = group = 0
    text = text.replace(" Millionen", "#").replace(" Million", "#").replace(" ", "")
    while text:
        for mark, size in (("#", 1_000_000), ("tausend", 1000)):
            if text.startswith(mark):
                total, group, text = total + group * size, 0, text[len(mark) :]
                break
        else:
            if text.startswith("hundert"):
                group, text = group * 100, text[7:]
                continue
            text = text.removeprefix("und")
            word = next(w for w in words if text.startswith(w))
            group, text = group + units[word], text[len(word) :]
    return total + group


def test_german_words_say_the_number():
    rng = random.Random(1)
    for n in [*range(1300), *(numbers.draw(rng) for _ in range(3000))]:
        assert german_value(numbers.german(n)) == n, n


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (1, 0, "one o'clock", "ein Uhr"),
        (3, 15, "a quarter past three", "Viertel nach drei"),
        (3, 30, "half past three", "halb vier"),
        (12, 30, "half past twelve", "halb eins"),
        (3, 25, "twenty-five past three", "fünf vor halb vier"),
        (3, 35, "twenty-five to four", "fünf nach halb vier"),
        (12, 45, "a quarter to one", "Viertel vor eins"),
        (7, 59, "one minute to eight", "eine Minute vor acht"),
        (5, 20, "twenty past five", "zwanzig nach fünf"),
        (6, 43, "seventeen minutes to seven", "siebzehn Minuten vor sieben"),
    ],
)
def test_spoken_times(hour, minute, english, german):
    assert times.spoken(hour, minute) == (english, german)


def test_clock_dates_and_prices():
    import datetime

    assert times.clock(0) == ("12:00 a.m.", "00:00 Uhr")
    assert times.clock(12 * 60 + 5) == ("12:05 p.m.", "12:05 Uhr")
    day = datetime.date(2024, 3, 3)
    assert times.date(day, weekday=True) == ("Sunday, March 3, 2024", "Sonntag, 3. März 2024")
    assert times.on_date(day, 1) == ("on Sunday, March 3", "am Sonntag, dem 3. März")
    assert [times.german_ordinal(n) + "e" for n in (1, 3, 7, 8, 19, 20, 31)] == (
        "erste dritte siebte achte neunzehnte zwanzigste einunddreißigste".split()
    )
    assert (times.english_year(1905), times.german_year(1905)) == ("nineteen oh five", "neunzehnhundertfünf")
    assert (times.english_year(2007), times.german_year(2017)) == ("two thousand seven", "zweitausendsiebzehn")
    assert times.price(123450, "€") == ("€1,234.50", "1.234,50 €")
    assert times.price_words(10101, ("euro", "Euro"), True) == (
        "one hundred one euros and one cent",
        "einhundertein Euro und ein Cent",
    )


# --- grammar ---
def phrase(english: str, determiner: str = "the", adjective_: str = "", plural: bool = False, **more):
    return Shape(noun(english), determiner, plural, adjective(adjective_) if adjective_ else None, **more).phrase()


@pytest.mark.parametrize(
    ("arguments", "case", "german"),
    [
        (("dog", "the", "old"), "nom", "der alte Hund"),
        (("dog", "the", "old"), "acc", "den alten Hund"),
        (("dog", "a", "old"), "nom", "ein alter Hund"),
        (("dog", "a", "old"), "acc", "einen alten Hund"),
        (("dog", "no", "old"), "acc", "keinen alten Hund"),
        (("dog", "my", "old", True), "acc", "meine alten Hunde"),
        (("dog", "our", "", False), "dat", "unserem Hund"),
        (("dog", "the", "", True), "dat", "den Hunden"),
        (("house", "a", "big"), "nom", "ein großes Haus"),
        (("house", "the", "big"), "dat", "dem großen Haus"),
        (("house", "", "big", True), "nom", "große Häuser"),
        (("house", "many", "big", True), "dat", "vielen großen Häusern"),
        (("house", "all", "big", True), "acc", "alle großen Häuser"),
        (("cat", "this", "black"), "acc", "diese schwarze Katze"),
        (("cat", "this", "black"), "dat", "dieser schwarzen Katze"),
        (("cat", "every", "black"), "gen", "jeder schwarzen Katze"),
        (("student", "the"), "acc", "den Studenten"),
        (("boy", "a", "happy"), "dat", "einem glücklichen Jungen"),
        (("neighbor", "my"), "gen", "meines Nachbarn"),
        (("man", "the", "rich"), "gen", "des reichen Mannes"),
        (("milk", "", "fresh"), "acc", "frische Milch"),
        (("coffee", "", "hot"), "acc", "heißen Kaffee"),
        (("bread", "no", "fresh"), "acc", "kein frisches Brot"),
        (("key", "her", "", True), "dat", "ihren Schlüsseln"),
        (("car", "a", "expensive"), "acc", "ein teures Auto"),
        (("room", "the", "dark"), "dat", "dem dunklen Zimmer"),
    ],
)
def test_noun_phrases(arguments, case, german):
    assert phrase(*arguments).de[case] == german


def test_noun_phrases_with_number_and_owner():
    assert phrase("dog", "", "small", True, count=3).de["dat"] == "drei kleinen Hunden"
    assert phrase("book", "", "new", owner="Anna").de["acc"] == "Annas neues Buch"
    owned = phrase("car", of=phrase("teacher", "my"))
    assert (owned.en, owned.de["nom"]) == ("the car of my teacher", "das Auto meines Lehrers")


HE, SHE, THEY, WE = pronoun("3m"), pronoun("3f"), pronoun("3p"), pronoun("1p")
CLAUSES = [
    (Clause(HE, verb("call", "t"), accusative=phrase("mother", "his")), "he calls his mother",
     "er ruft seine Mutter an"),
    (Clause(HE, verb("call", "t"), "past", accusative=pronoun("1s")), "he called me", "er hat mich angerufen"),
    (Clause(SHE, verb("buy", "t"), "present", True, phrase("apple", "no")), "she does not buy an apple",
     "sie kauft keinen Apfel"),
    (Clause(THEY, verb("see", "t"), "past", True, phrase("dog")), "they did not see the dog",
     "sie haben den Hund nicht gesehen"),
    (Clause(WE, verb("read", "t"), "progressive", accusative=phrase("newspaper", "a")), "we are reading a newspaper",
     "wir lesen gerade eine Zeitung"),
    (Clause(HE, verb("eat", "t"), "perfect", accusative=phrase("cake")), "he has already eaten the cake",
     "er hat den Kuchen schon gegessen"),
    (Clause(SHE, verb("go", "w"), "past", place=("to the park", "in den Park"), time=("yesterday", "gestern"),
            fronted=True), "yesterday she went to the park", "gestern ist sie in den Park gegangen"),
    (Clause(HE, verb("wake up", "i"), "must", True), "he must not wake up", "er darf nicht aufwachen"),
    (Clause(HE, verb("wake up", "i"), "have to", True), "he does not have to wake up", "er muss nicht aufwachen"),
    (Clause(name("Anna"), verb("help", "d"), "will", dative=phrase("child", "the")), "Anna will help the child",
     "Anna wird dem Kind helfen"),
    (Clause(pronoun("2p"), verb("give", "g"), accusative=phrase("ball", "the"), dative=phrase("boy")),
     "you all give the boy the ball", "ihr gebt dem Jungen den Ball"),
    (Clause(pronoun("2s"), verb("have", "t"), "past", accusative=phrase("dog", "a")), "you had a dog",
     "du hattest einen Hund"),
    (Clause(HE, verb("pick up", "t"), accusative=pronoun("1p")), "he picks us up", "er holt uns ab"),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "english", "german"), CLAUSES)
def test_clauses(clause, english, german):
    assert (clause.english(), clause.german()) == (english, german)


def test_word_order_of_questions_and_subordinate_clauses():
    calls, called = CLAUSES[0][0], CLAUSES[1][0]
    assert calls.german_question() == "ruft er seine Mutter an"
    assert calls.english_question() == "does he call his mother"
    assert calls.german_subordinate() == "er seine Mutter anruft"
    assert calls.german_zu() == "seine Mutter anzurufen"
    assert called.german_subordinate() == "er mich angerufen hat"
    assert CLAUSES[7][0].german_subordinate() == "er nicht aufwachen darf"


# --- the tasks ---
def test_translation_is_a_function_both_ways():
    rng, targets = random.Random(4), {}
    for group in ("sentences", "sentences", "dates", "times", "prices", "numbers"):
        for _ in range(5000):
            for example in tasks.draw(rng, group)[1]:
                assert targets.setdefault(example.source, example.target) == example.target


def test_training_shows_nothing_held_out():
    rng = random.Random(5)
    for example in islice(tasks.training(rng), 6000):
        if example.source.startswith(tasks.SUMMARIZE):
            assert not tasks.is_held_out(example.source.removeprefix(tasks.SUMMARIZE))
        elif example.source.startswith(tasks.TO_GERMAN) and not example.group.startswith("numbers"):
            assert not tasks.is_held_out(example.source.removeprefix(tasks.TO_GERMAN))
    combined = tasks.held_out(rng, "sentences", "new combinations", 20)
    assert len(combined) == 40 and not is_novel("old", "dog")


def test_the_tokenizer_changes_nothing():
    tokenizer = Tokenizer.from_dir(ASSET)
    texts = [t for e in islice(tasks.training(random.Random(6)), 2000) for t in (e.source, e.target)]
    texts += ["two  spaces\n\nand a line ", "Zürich – „Gänse“ {x|y} ~ #1", "1,234,567 1.234.567,89 €"]
    for text in texts:
        assert tokenizer.decode([*tokenizer.encode(text), 1, 0, 0]) == text
        assert tokens.UNK not in tokenizer.encode(text)
    assert tokenizer.encode_source("a")[-1] == tokens.EOS and len(tokenizer.encode("1234")) == 5


def test_the_packaged_tokenizer_is_the_one_that_training_builds():
    built, packaged = tokens.build(), Tokenizer.from_dir(ASSET)
    for example in islice(tasks.training(random.Random(7)), 200):
        assert built.encode(example.source).ids == packaged.encode_source(example.source)


def test_notices_hold_every_fact_of_their_summary():
    rng, seen = random.Random(8), set()
    for _ in range(400):
        _, [example] = tasks.draw(rng, "notices")
        kind, _, rest = example.target.partition(": ")
        seen.add(kind.lower())
        for word in rest.replace(",", " ").replace(";", " ").replace("(", " ").replace(")", " ").split():
            if any(c.isdigit() for c in word) or word[0].isupper():
                assert word.rstrip(".") in example.source, (example.source, example.target)
    assert seen == set(KINDS)


# --- model and papers ---
def test_the_training_forward_is_hugging_faces():
    torch.manual_seed(0)
    model = build(num_layers=2, num_decoder_layers=2, vocab_size=100)
    source, target = torch.randint(3, 100, (2, 3, 12))
    source[1, 7:] = target[2, 5:] = tokens.PAD
    labels = target.masked_fill(target == tokens.PAD, -100)
    with torch.no_grad():
        wanted = model(input_ids=source, attention_mask=(source != tokens.PAD).long(), labels=labels).loss
        fold_scale(model, 1 / SCALE)
        torch.testing.assert_close(Trainer(model, compiled=False)(source, target)[0], wanted)


def test_the_packaged_model_answers_held_out_lines():
    model = T5ForConditionalGeneration.from_pretrained(ASSET, dtype=torch.float32).eval()
    rng = random.Random(9)
    examples = [e for group in tasks.GROUPS for e in tasks.held_out(rng, group, "held-out", 1)]
    tokenizer = FastTokenizer.from_file(str(ASSET / "tokenizer.json"))
    answers = evaluate.answer(model, tokenizer, [e.source for e in examples], torch.device("cpu"))
    assert answers == [e.target for e in examples]


@pytest.mark.parametrize(("a", "b", "value"), [("a b c", "a b c", 1.0), ("a b c d", "a x c", 4 / 7), ("a", "", 0.0)])
def test_rouge_l(a, b, value):
    assert evaluate.rouge_l(a, b) == pytest.approx(value)


def test_the_card_states_the_measured_figures():
    results = json.loads((ASSET / "eval.json").read_text())["results"]
    card = (ASSET / "README.md").read_text()
    for kind, groups in results.items():
        for group, r in groups.items():
            row = f"| {kind} | {group} | {r['lines']} | {100 * r['exact']:.2f}% | {100 * r['rouge_l']:.2f} |"
            assert row in card
            if kind != evaluate.BEYOND:
                assert r["lines"] >= 1000 and r["exact"] >= 0.99, group


def test_the_package_is_small_enough_to_ship():
    assert sum(file.stat().st_size for file in ASSET.iterdir()) <= 14_000_000


def test_the_examples_are_held_out():
    lines = (ROOT / "examples" / "translate.tsv").read_text().splitlines()
    pairs = [line.split("\t") for line in lines]
    assert len(pairs) == 40 and all(len(pair) == 2 for pair in pairs)
    plain = [source for source, _ in pairs if not source.endswith((" in words", " in digits")) and "," not in source]
    assert sum(map(tasks.is_held_out, plain)) >= 0.9 * len(plain)
    rows = [json.loads(line) for line in (ROOT / "examples" / "notices.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and all(tasks.is_held_out(row["text"]) for row in rows)
