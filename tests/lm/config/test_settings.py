"""Every setting: a default of its type, a help of one line, a keyword and a variable of its own."""

import pytest

from lm.config.inference import SamplingConfig
from lm.config.model import ModelConfig
from lm.config.run_config import SECTIONS
from lm.config.settings import build_config, build_from, list_all_settings
from lm.errors import UsageError

SETTINGS = list_all_settings(SECTIONS)


def test_keywords_are_unique():
    assert (
        len({setting.keyword for setting in SETTINGS})
        == len({setting.variable for setting in SETTINGS})
        == len(SETTINGS)
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_default_is_valid_and_its_text_means_the_same(setting):
    if setting.default is not None:
        assert setting.convert(setting.default, "here") == setting.default
    if setting.default not in (None, ()):
        text = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
        assert setting.convert(text, "here") == setting.default
    assert "\n" not in setting.describe()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
@pytest.mark.parametrize("value", ["nan", "inf", "-1e400", object()])
def test_what_is_no_number_or_text_is_refused_by_place(setting, value):
    if setting.plain_type in (str, tuple) and isinstance(value, str):
        return
    with pytest.raises(UsageError, match="^here: "):
        setting.convert(value, "here")


def test_a_config_from_a_file_is_checked():
    for values in ({"d_model": "x"}, {"d_model": 0}, {"d_modle": 3}, {"d_model": 2**40}, {"dropout": float("nan")}, []):
        with pytest.raises(UsageError, match="^config.json: "):
            build_config(ModelConfig, values, where="config.json")


def test_python_keywords_are_checked():
    assert build_from(SamplingConfig, {"temperature": 0, "stop": ["a", "b"], "top_k": None}).stop == ("a", "b")
    for wrong in ({"temperature": "hot"}, {"temprature": 1}, {"top_p": 2}):
        with pytest.raises(UsageError):
            build_from(SamplingConfig, wrong)
