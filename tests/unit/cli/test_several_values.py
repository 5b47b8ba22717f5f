"""Flags before several values: each further value gets the flag before it, and nothing else does."""

from __future__ import annotations

import pytest

from vlm_app.cli.options.several import with_each_flag
from vlm_app.core.load_options import AdapterFolders

METAVARS = {
    "--dir": "FOLDER...",
    "--uids": "NUMBER...",
    "--tasks": "TASK...",
    "--goodput": "NAME:MS...",
    "--lora": None,
    "-x": "TEXT",
}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--uids 0 1 -1", "--uids 0 --uids 1 --uids -1"),
        ("--uids -1 0,-1 text", "--uids -1 --uids 0,-1 text"),
        ("--uids 0 -x 1", "--uids 0 -x 1"),
        ("--uids=0 1 --lora a b", "--uids=0 --uids 1 --lora a b"),
        ("text --dir a b=c --uids 0", "text --dir a --dir b=c --uids 0"),
        ("--dir a -- b --uids 0 1", "--dir a -- b --uids 0 1"),
        ("--dir a -", "--dir a -"),  # which is stdin
        ("--tasks squad boolq --tasks 0 -1 text", "--tasks squad boolq --tasks 0 --tasks -1 text"),
        ("--goodput ttft:200 tpot:50 --uids 0", "--goodput ttft:200 --goodput tpot:50 --uids 0"),
        ("--uids", "--uids"),
        ("0 1 -1", "0 1 -1"),
    ],
)
def test_further_values_have_their_flag(line, found):
    assert with_each_flag(line.split(), METAVARS) == found.split()


def test_folders_of_equal_names_are_told_apart_by_their_paths():
    folders = ("r1/last", "r2/last", "x/lr=1", "r3/y/last")
    assert AdapterFolders(folders).named == ("r1/last=r1/last", "r2/last=r2/last", "lr-1=x/lr=1", "y/last=r3/y/last")
