"""Tables in the terminal."""

from competition.report.tables import table_lines


def test_columns_are_aligned_and_nothing_is_wrapped_or_styled_without_a_terminal() -> None:
    long_name = "[bold]a name[/] " + "x" * 200
    assert table_lines(["member", "step"], [["slim", "train"], [long_name, "predict"], ["蘭", "train"]]) == [
        "  " + "member".ljust(len(long_name)) + "  step",
        "  " + "slim".ljust(len(long_name)) + "  train",
        "  " + long_name + "  predict",
        "  " + "蘭".ljust(len(long_name) - 1) + "  train",  # two cells wide
    ]
