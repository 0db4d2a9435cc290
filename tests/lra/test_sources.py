import re

from lra import sources


def test_advice_has_size_checksum_and_command():
  for task, known in sources.ARCHIVES.items():
    advice = sources.advice(task)
    assert all(words in advice for words in (known.url, known.about, f"python -m lra.prepare {task} --download"))
    assert known.sha256 is None or (known.sha256 in advice and re.fullmatch("[0-9a-f]{64}", known.sha256))
