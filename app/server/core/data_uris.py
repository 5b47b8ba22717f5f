"""Files within a request, as `data:` URIs (RFC 2397)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from vlm.errors import InputError

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_BLANKS = b" \t\r\n"  # base64 of mails and of command lines has lines
# what browsers escape of base64; a general decoder makes a list of millions of parts
_ESCAPES = {b"%2B": b"+", b"%2F": b"/", b"%3D": b"=", b"%0A": b"", b"%0D": b"", b"%20": b""}


def is_data_uri(text: str, kind: str = "") -> bool:
    """Says whether a text begins as a data URI, of a media type that begins with `kind`, in any case of letters."""
    return text[: 5 + len(kind)].lower() == f"data:{kind}"


def decode_data_uri(uri: Any) -> bytes:
    """Returns the file of `data:image/png;base64,…`. InputError for any other address: nothing is fetched.

    As clients write it: any case, parameters, percent-encoding, line breaks, base64's URL-safe letters, no padding.
    """
    if not isinstance(uri, str):
        raise InputError("an image's or file's address is no string; send data:image/png;base64,….")
    if not is_data_uri(uri):
        if _SCHEME.match(uri):
            raise InputError("images are not fetched from addresses; send them as data:image/png;base64,… instead.")
        raise InputError("an image or file is no data URI; put data:image/png;base64, (or its type) before its base64.")
    head, comma, content = uri.partition(",")
    if not comma or not head.lower().rstrip().endswith(";base64"):
        raise InputError("an image is no base64 data URI; send data:image/png;base64,….")
    return _decode(content)


def _decode(content: str) -> bytes:
    try:
        letters = content.encode("ascii")
        for code, letter in _ESCAPES.items() if b"%" in letters else ():
            letters = letters.replace(code, letter).replace(code.lower(), letter)
        letters = letters.translate(_URL_SAFE, _BLANKS).rstrip(b"=")
        content_bytes = base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InputError("an image's base64 is damaged; encode the file's bytes again.") from None
    if not content_bytes:
        raise InputError("a data URI is empty; encode the file's bytes again.")
    return content_bytes
