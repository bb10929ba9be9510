"""Pictures and the report page: what is drawn is what was measured, and nothing unescaped gets in."""

import itertools
import xml.etree.ElementTree as ElementTree

from hypothesis import given
from hypothesis import strategies as st

from core.statistics.intervals import Interval
from hone.pictures import bars, curve

SVG = "{http://www.w3.org/2000/svg}"
shares = st.floats(0, 1)


@given(st.lists(shares, min_size=1, max_size=40), st.text(alphabet="<>&\"'abc", max_size=20))
def test_a_curve_is_well_formed_and_has_a_point_per_step(values, name):
    """Whatever the series is called, the SVG parses and shows every step once."""
    root = ElementTree.fromstring(curve([(name, values, "#000")], x_label=name, title=name))
    assert len(root.findall(f"{SVG}circle")) == len(values)
    assert root.find(f"{SVG}title").text in {name, None}


@given(st.lists(st.tuples(st.text(alphabet="<&ab", max_size=8), shares), min_size=1, max_size=5))
def test_bars_have_their_heights_in_the_order_of_their_means(rows):
    """A higher mean never gets a lower bar."""
    given_rows = [(label, Interval(mean=mean, low=mean, high=mean), "#000") for label, mean in rows]
    root = ElementTree.fromstring(bars(given_rows, title="t"))
    heights = [float(rect.get("height")) for rect in root.findall(f"{SVG}rect")]
    order = sorted(range(len(rows)), key=lambda index: rows[index][1])
    assert all(heights[a] <= heights[b] + 0.2 for a, b in itertools.pairwise(order))
