"""Time by section."""

from itertools import count

from fednews.timing import Sections, section, unmeasured


def test_a_section_counts_without_the_sections_inside_it():
    ticks = count()
    with Sections(lambda: float(next(ticks))) as sections, section("outer"):
        with section("inner"):
            pass
        with unmeasured(), section("nobody"):
            pass
    assert sections.seconds == {"outer": 2.0, "inner": 1.0}


def test_without_anybody_measuring_nothing_happens():
    with section("anything"):
        pass
    sections = Sections()
    with section("before"):
        assert not sections.seconds
