import pytest

from mgk_jax.analysis import table


def test_markdown_is_aligned_with_numbers_to_the_right():
  got = table.markdown(
    ["model", "n", "parameters", "test %"],
    [
      ["smgk", "3", "54,218", "37.3 ± 1.2"],
      ["softmax|hard", "", "1,054,218", "-0.5"],
      ["mgk", "12", "9e+3", "nan ± nan"],
    ],
  )
  assert got == (
    "| model         |   n | parameters |     test % |\n"
    "| ------------- | --: | ---------: | ---------: |\n"
    "| smgk          |   3 |     54,218 | 37.3 ± 1.2 |\n"
    "| softmax\\|hard |     |  1,054,218 |       -0.5 |\n"
    "| mgk           |  12 |       9e+3 |  nan ± nan |"
  )


def test_a_column_with_words_is_set_to_the_left():
  assert table.markdown(["step"], [["50"], ["not yet"]]).splitlines()[2] == "| 50      |"


def test_a_table_without_rows_is_its_head():
  assert table.markdown(["a", "b"], []) == "| a   | b   |\n| --- | --- |"


def test_rows_of_another_size_are_refused():
  with pytest.raises(ValueError, match=r"expected 2 cells in a row \(a, b\), got 1: \['1'\]"):
    table.markdown(["a", "b"], [["1", "2"], ["1"]])


def test_mean_and_sample_standard_deviation():
  assert table.mean_std([1.0, 2.0, 4.0]) == "2.3 ± 1.5"  # √(7/3) = 1.53; with n in the denominator it were 1.2
  assert table.mean_std([1.0, 2.0, 4.0], digits=3) == "2.333 ± 1.528"
  assert table.mean_std([54.82]) == "54.8"
  for value in ("nan", "inf"):
    assert table.mean_std([float(value), 1.0]) == f"{value} ± nan"
  with pytest.raises(ValueError, match="expected at least one"):
    table.mean_std([])
