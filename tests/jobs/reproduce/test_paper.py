"""The paper's numbers, typed in by hand a second time."""

from vitkit.jobs.reproduce.items import (
    DATA_SIZES,
    TABLE_2,
    TABLE_5,
    TABLE_6_WHOLE,
    TABLE_7,
    TABLE_8,
    PaperTable,
)


def check(numbers: PaperTable, row: str, *expected: tuple[float | None, ...]) -> None:
    assert [numbers.rows[row]] == list(expected)


def test_rows_of_the_papers_tables() -> None:
    check(TABLE_2, "ImageNet", (88.55, 87.76, 85.30, 87.54, 88.4))
    check(TABLE_2, "VTAB (19 tasks)", (77.63, 76.28, 72.72, 76.29, None))
    check(TABLE_5, "ImageNet-21k, CIFAR-100", (91.67, 91.97, 93.44, 93.04, 93.82))
    check(TABLE_5, "JFT-300M, Pets", (95.80, 93.40, 97.11, 95.83, 97.56))
    check(DATA_SIZES, "ImageNet", (77.91, 73.38, 76.53, 71.16, None))
    check(TABLE_6_WHOLE, "ViT-B/32, 7", (80.73, 86.27, 98.61, 90.49, 93.40, 99.27, 55))
    check(TABLE_6_WHOLE, "BiT-R152x2, 14", (85.56, 89.89, 99.24, 91.92, 95.75, 98.75, 1126))
    check(TABLE_6_WHOLE, "R50+ViT-L/16, 14", (87.12, 89.76, 99.31, 93.89, 97.36, 99.11, 1668))
    check(TABLE_7, "average", (89.33, 88.79, 94.01, 93.72))
    check(TABLE_8, "none", (0.61382, None, None))
    check(TABLE_8, "1-D", (0.64206, 0.63964, 0.64292))
    assert len(TABLE_6_WHOLE.rows) == 18 and len(TABLE_5.rows) == 18
    for numbers in (TABLE_2, TABLE_5, TABLE_6_WHOLE, TABLE_7, TABLE_8, DATA_SIZES):
        assert {len(row) for row in numbers.rows.values()} == {len(numbers.headings) - 1}
