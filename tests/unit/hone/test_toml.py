"""The TOML that is shown is the configuration that was loaded."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from hone.toml import to_toml

scalars = st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=12).filter(str.isprintable)
keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
tables = st.recursive(
    st.dictionaries(keys, scalars | st.lists(st.integers(0, 9), max_size=3), max_size=4),
    lambda inner: st.dictionaries(keys, scalars | inner, max_size=3),
    max_leaves=6,
)


@given(tables)
def test_rendered_toml_parses_back_to_the_same_data(values):
    """Rendering and parsing are inverse."""
    assert tomllib.loads(to_toml(values)) == values
