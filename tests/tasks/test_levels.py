"""The tables of levels: how accurate a model is at each, how often it is sure, and the tree."""

from vitkit.evaluation.levels import GroupScore, LevelScore, LevelScores
from vitkit.result import Table
from vitkit.tasks.answering import level_section

SCORES = LevelScores(
    thresholds=(0.5, None),
    cross_fitted=True,
    levels=(
        LevelScore(1, 2, 190, 0.95, (0.91, 0.976), 180, 176, (0.944, 0.994), 80, 77),
        LevelScore(2, 4, 150, 0.75, (0.684, 0.808), 0, 0, None, 0, 0),
    ),
    groups=(
        GroupScore("birds", 150, 145, 140, 138),
        GroupScore("birds/gull", 100, 80, 60, 60),
        GroupScore("birds/gull/herring", 0, 0, 0, 0),
    ),
)


def texts(table: Table) -> list[list[str]]:
    rows = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    return [list(table.headings), *rows]


def test_the_section_has_a_row_for_each_level_and_the_tree_and_says_how_it_was_measured() -> None:
    levels, caption, tree, _ = level_section(SCORES, 200, "200 test images").blocks
    assert isinstance(levels, Table) and isinstance(tree, Table)
    headings, first, second = texts(levels)
    assert headings[2:] == ["accuracy", "sure above", "named", "named rightly", "end here", "rightly"]
    assert first[:5] == ["1", "2", "95.0% (91.0% to 97.6%)", "50.0%", "90.0%"]
    assert first[5:] == ["97.8% (94.4% to 99.4%)", "40.0%", "96.2%"]
    assert second == ["2", "4", "75.0% (68.4% to 80.8%)", "–", "0.0%", "–", "0.0%", "–"]
    assert texts(tree) == [
        ["class", "images", "accuracy", "named", "named rightly"],
        ["birds", "150", "96.7%", "93.3%", "98.6%"],
        ["\u2003gull", "100", "80.0%", "60.0%", "100.0%"],
        ["\u2003\u2003herring", "0", "–", "–", "–"],
    ]
    said = str(caption)
    assert "at most 5% of the images named" in said and "each tenth of them" in said
