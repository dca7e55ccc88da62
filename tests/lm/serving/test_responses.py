"""Responses are JSON in UTF-8."""

import json

from lm.serving.responses import to_json


def test_texts_are_readable_and_on_one_line():
    text = "".join(map(chr, range(0x3000))) + "狐\U0001f98a\ud800 \udfff"
    encoded = to_json({"text": text})
    assert json.loads(encoded) == {"text": text}
    assert len(encoded.decode().splitlines()) == 1
    assert "狐\U0001f98a" in encoded.decode()
    assert "ışık" in to_json(["ışık"]).decode()
