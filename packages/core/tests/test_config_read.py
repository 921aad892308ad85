"""Sources: mapping, path, text, base64; and what is wrong with the form itself."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from fake_plugins import manager
from hypothesis import given, settings
from hypothesis import strategies as st

from dsx.config.load import load_config
from dsx.config.read import read_source
from dsx.errors import ConfigError

VALUE = {"seed": 5, "fp16": {"enabled": False}}

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_every_form_gives_the_same(tmp_path: Path) -> None:
    text = json.dumps(VALUE)
    file = tmp_path / "ds_config.json"
    file.write_text(text)
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    for source in (VALUE, text, f"\n {text}", file, str(file), encoded):
        assert read_source(source) == VALUE
    assert read_source(None) == {}


@settings(deadline=None)  # a loaded machine is no failure
@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_text_and_base64_round_trip(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert read_source(text) == value
    assert read_source(base64.urlsafe_b64encode(text.encode()).decode()) == value


def test_a_loaded_configuration_is_taken_as_it_is() -> None:
    config = load_config(VALUE, plugins=manager())
    assert load_config(config, plugins=manager()) is config


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('{"a": 1, "a": 2}', "gives 'a' twice in one object"),
        ('{"fp16": {"enabled": true, "enabled": false}}', "gives 'enabled' twice"),
        ('{"a": 1,}', "line 1, column"),
        ("{", "is not JSON"),
        ("no_such_file.json", "no configuration at 'no_such_file.json'"),
        ("", "no configuration at ''"),
        ("\0", "no configuration at"),
        (base64.urlsafe_b64encode(b'{"seed": }').decode(), "the base64 text is not JSON"),
        (7, "cannot be read from int"),
    ],
)
def test_what_cannot_be_read_says_why(source: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_source(source)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="holds list, wanted an object"):
        read_source(file)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match=r"model\.bin cannot be read"):
        read_source(file)


def test_infinity_is_read_from_a_file() -> None:
    assert load_config('{"steps_per_print": Infinity}', plugins=manager()).steps_per_print == float("inf")
