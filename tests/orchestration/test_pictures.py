"""The pictures of a run, read back as the XML that a browser draws."""

import re
from dataclasses import replace
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from embeddings_pipeline.orchestration import pictures
from embeddings_pipeline.pipeline.statistics import BIN_EDGES, MOST_POINTS, MOST_SLOTS
from embeddings_pipeline.records import Counts
from embeddings_pipeline.reports import EmbedReport, EmbedStatistics, PartReport

SVG = "{http://www.w3.org/2000/svg}"
RANDOM = np.random.default_rng(2)
COUNTS = Counts(read=100, embedded=100)
STATISTICS = EmbedStatistics(
    token_lengths={8: 10, 64: 60, 256: 20, 512: 10},
    max_length=300,
    slot_seconds=2.0,
    texts_per_second=(0.0, 20.0, 30.0),
    tokens_per_second=(0.0, 900.0, 1_200.0),
    points=(("title", 1.0, 0.0), ("title", -1.0, 0.5), ("card", 0.0, -0.5)),
    explained=0.61,
)
REPORT = EmbedReport(
    counts=COUNTS,
    parts=(PartReport("p", "title", COUNTS, tokens=4_200, truncated=12),),
    computed=100,
    tokens=4_200,
    truncated=12,
    seconds=6.0,
    compute_share=0.9,
    device="cpu",
    workers=2,
    application_batch_size=10,
    model_batch_size=4,
    model_batch_tokens=1024,
    model={},
    rejects_by_reason={},
    staging_location="/s",
    rejects_location="/r",
    events=(),
    statistics=STATISTICS,
)
# What CSS says these names are.
RGB = {
    "gray": "#808080",
    "steelblue": "#4682b4",
    "chocolate": "#d2691e",
    "seagreen": "#2e8b57",
    "mediumorchid": "#ba55d3",
}
PICTURES = [pictures.token_lengths, pictures.throughput, pictures.projection]


def svg(markdown: str) -> ET.Element:
    found = re.match(r"!\[[^\]]+\]\(<data:image/svg\+xml,([^<>\n]+)>\)\n\n", markdown)
    assert found, markdown
    return ET.fromstring(unquote(found[1]))


def sentence(markdown: str) -> str:
    return " ".join(markdown.partition("\n\n")[2].split("  \n"))


def words(markdown: str) -> list[str]:
    return [text for part in svg(markdown).iter() if (text := (part.text or "").strip())]


def drawn(**changes) -> EmbedReport:
    return replace(REPORT, statistics=replace(STATISTICS, **changes))


def report_of_a_large_run(strategies: int) -> EmbedReport:
    names = [f"a_strategy_with_a_long_name_{number}" for number in range(strategies)]
    points = [(names[at % strategies], *RANDOM.uniform(-1, 1, 2).round(3).tolist()) for at in range(MOST_POINTS)]
    return drawn(
        token_lengths={int(edge): int(RANDOM.integers(1, 10**7)) for edge in BIN_EDGES[:-1]},
        max_length=2**31 - 1,
        slot_seconds=65_536.0,
        texts_per_second=tuple(RANDOM.uniform(0, 1e6, MOST_SLOTS)),
        tokens_per_second=tuple(RANDOM.uniform(0, 1e9, MOST_SLOTS)),
        points=tuple(points),
    )


@pytest.mark.parametrize("strategies", [1, 3, 40])
@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_is_small_however_much_there_was(picture, strategies: int) -> None:
    """The UI draws 999 characters of markdown where they stand, and puts 1,000 behind a link."""
    markdown = picture(report_of_a_large_run(strategies))
    assert svg(markdown).tag == f"{SVG}svg"
    assert len(markdown) <= pictures.LARGEST == 999


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_needs_nothing_from_elsewhere_and_has_no_background(picture) -> None:
    """The UI's page is light or dark; a white box would glare in one of them."""
    root = svg(picture(REPORT))
    assert {part.tag.removeprefix(SVG) for part in root.iter()} <= {"svg", "path", "text", "g"}
    assert not [name for part in root.iter() for name in part.attrib if "href" in name]
    colours = {value for part in root.iter() for name, value in part.attrib.items() if name in ("fill", "stroke")}
    assert colours <= set(RGB)
    assert set(pictures.COLOURS) <= set(RGB)
    for colour in colours:
        assert all(contrast(RGB[colour], ground) >= 3 for ground in ("#ffffff", "#16181d")), colour


@pytest.mark.parametrize("picture", PICTURES)
def test_the_sentence_is_as_narrow_as_the_column_that_it_stands_in(picture) -> None:
    """The UI does not wrap it: what is wider is not to be seen."""
    before = PartReport("q", "title", Counts(read=10**9, embedded=10**9), tokens=1, truncated=0, resumed=True)
    report = replace(report_of_a_large_run(4), counts=Counts(10**9, 10**9), truncated=10**9, parts=(before,))
    assert all(len(line) <= 51 for line in picture(report).partition("\n\n")[2].splitlines())


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_histogram_marks_the_models_limit_and_what_is_beyond_it() -> None:
    markdown = pictures.token_lengths(REPORT)
    assert "limit 300" in words(markdown)
    within, beyond = filled(markdown)
    # The bin that the limit is in is drawn in both colours.
    assert within.endswith(f"{beyond[1:].split(' ')[0]}V116z")
    assert levels(beyond)[0] == levels(within)[-1]
    assert sentence(markdown) == ("100 texts; half have up to 80 tokens. 12 are over the model's limit and cut.")


def filled(markdown: str) -> list[str]:
    """Return the paths of the areas."""
    return [part.get("d", "") for part in svg(markdown).iter(f"{SVG}path") if part.get("fill")]


def levels(path: str) -> list[int]:
    """Return how high the bars of an area are, in pixels."""
    return [116 - int(level) for level in re.findall(r"V(\d+)H", path)]


def test_bars_are_as_high_as_their_texts_are_many_and_all_bins_between_are_there() -> None:
    (path,) = filled(pictures.token_lengths(drawn(token_lengths={64: 60, 102: 20, 128: 10}, max_length=200)))
    assert levels(path) == [98, 0, 33, 16]


def test_bins_are_joined_where_there_are_many_and_no_text_is_lost() -> None:
    lengths = {int(edge): 10 for edge in BIN_EDGES[:-1]}
    (path,) = filled(pictures.token_lengths(drawn(token_lengths=lengths, max_length=0)))
    assert 10 < len(levels(path)) < 91
    assert max(levels(path)) == 98
    assert len(BIN_EDGES) == 92


def test_a_histogram_without_a_limit_has_no_line() -> None:
    markdown = pictures.token_lengths(drawn(max_length=0))
    assert not [word for word in words(markdown) if word.startswith("limit")]
    assert len(filled(markdown)) == 1


def test_the_histogram_says_of_how_many_texts_it_knows_nothing() -> None:
    report = replace(REPORT, counts=Counts(read=1_100, embedded=100, skipped=1_000))
    assert sentence(pictures.token_lengths(report)).endswith("1,000 more were published before.")


@pytest.mark.parametrize("lengths", [{0: 3}, {3: 1}, {1: 1, 1704458901: 1}])
@pytest.mark.parametrize("limit", [0, 3, 512])
def test_texts_of_any_length_can_be_drawn(lengths: dict[int, int], limit: int) -> None:
    root = svg(pictures.token_lengths(drawn(token_lengths=lengths, max_length=limit)))
    numbers = [int(value) for path in root.iter(f"{SVG}path") for value in re.findall(r"-?\d+", path.get("d", ""))]
    assert numbers
    assert min(numbers) >= 0
    assert max(numbers) <= 410


def test_the_throughput_has_a_panel_each_for_texts_and_tokens_over_the_time() -> None:
    markdown = pictures.throughput(REPORT)
    assert words(markdown) == ["up to 30 texts/s", "up to 1.2k tokens/s", "0 s", "6 s"]
    assert sentence(markdown) == "100 texts in 6 s, with loading the model."
    texts, tokens = filled(markdown)
    assert texts == "M0 52V52H137V27H273V14H410V52z"
    assert tokens.count("H") == 3


def test_the_throughput_of_a_resumed_run_says_what_is_not_in_it() -> None:
    before = PartReport("q", "title", Counts(read=50, embedded=50), tokens=1, truncated=0, resumed=True)
    report = replace(REPORT, parts=(*REPORT.parts, before))
    assert sentence(pictures.throughput(report)).endswith("50 of an earlier attempt are not in it.")


def test_the_projection_colours_points_by_strategy_and_names_them() -> None:
    markdown = pictures.projection(REPORT)
    assert words(markdown) == ["card", "title"]
    card, title = svg(markdown).iter(f"{SVG}path")
    assert (card.get("d", "").count("z"), title.get("d", "").count("z")) == (1, 2)
    assert (card.get("stroke"), title.get("stroke")) == pictures.COLOURS[:2]
    assert sentence(markdown) == "3 vectors on the two axes along which they differ most (61% of the variance)."


@pytest.mark.parametrize(("strategies", "least"), [(1, 90), (2, 60), (4, 40), (40, 40)])
def test_enough_points_fit_whatever_the_number_of_strategies(strategies: int, least: int) -> None:
    report = report_of_a_large_run(strategies)
    markdown = pictures.projection(report)
    points = sum(path.get("d", "").count("z") for path in svg(markdown).iter(f"{SVG}path"))
    assert points >= least
    assert f"{points} vectors" in sentence(markdown) or points < int(sentence(markdown).split(" ")[0])
    assert len(words(markdown)) == min(strategies, 4)
    if strategies == 40:
        assert words(markdown)[-1] == "37 others"


def test_where_nothing_was_embedded_the_reason_stands_in_place_of_a_picture() -> None:
    counts = Counts(read=220, skipped=217, rejected=3)
    report = replace(REPORT, counts=counts, computed=0, statistics=EmbedStatistics())
    for picture in PICTURES:
        assert picture(report) == (
            "Nothing to draw: no text went through the model  \n(217 were published before, 0 embedded  \n"
            "by an earlier attempt, 3 rejected)."
        )


def test_an_empty_delivery_and_equal_vectors_have_a_reason_of_their_own() -> None:
    empty = replace(REPORT, counts=Counts(), computed=0, statistics=EmbedStatistics())
    assert pictures.token_lengths(empty) == "Nothing to draw: the delivery has no text."
    assert pictures.projection(drawn(points=())) == "Nothing to draw: too few different vectors."


def test_names_cannot_break_a_picture() -> None:
    points = (("<script>&", 1.0, 1.0), ("<script>&", -1.0, 0.0), ("100% #1", 0.0, 0.0))
    assert words(pictures.projection(drawn(points=points))) == ["100% #1", "<script>&"]
