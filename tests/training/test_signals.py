"""SIGTERM and Ctrl-C: the first one is a wish, the second one acts as always."""

import os
import signal
import threading

import jax
import pytest

from mgk_jax.training import make_mesh, signals


@pytest.fixture(autouse=True)
def interruptible():
  """Ctrl-C as it usually acts: who starts a program in the background has it ignored."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


def send(number):
  os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_is_a_wish(number, capfd):
  with signals.listen() as request:
    assert not request and request.exit_code == 0
    send(number)
    assert request and request.exit_code == 128 + number
  assert f"{number.name}: saving and stopping after this step" in capfd.readouterr().err


def test_the_second_acts_as_always():
  with pytest.raises(KeyboardInterrupt), signals.listen() as request:
    send(signal.SIGINT)
    assert request
    send(signal.SIGINT)


def test_handlers_are_put_back():
  taken = []
  before = signal.signal(signal.SIGTERM, lambda number, _: taken.append(number))
  try:
    own = signal.getsignal(signal.SIGTERM)
    with signals.listen() as request:
      assert signal.getsignal(signal.SIGTERM) is not own
    assert signal.getsignal(signal.SIGTERM) is own
    with pytest.raises(OSError), signals.listen():
      raise OSError
    assert signal.getsignal(signal.SIGTERM) is own
    with signals.listen() as request:
      send(signal.SIGTERM)
      send(signal.SIGTERM)
    assert request and taken == [signal.SIGTERM]
  finally:
    signal.signal(signal.SIGTERM, before)
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_the_main_thread_nothing_is_taken():
  handlers, found = signal.getsignal(signal.SIGTERM), []

  def run():
    with signals.listen() as request:
      found.append((bool(request), signal.getsignal(signal.SIGTERM)))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert found == [(False, handlers)]


def test_of_several_processes_all_stop_at_what_all_have_heard(monkeypatch):
  """The one that got the signal waits for the others to know; see test_two_processes for real ones."""
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  sums, mesh = {"loss": 3.0}, make_mesh(1)

  def announced(request):
    return {name: float(value) for name, value in request.announce(sums, mesh).items()}

  with signals.listen() as asked:
    other = signals.StopRequest()
    send(signal.SIGTERM)
    assert other.hear(announced(other)) == sums and not other
    heard = announced(asked)
    assert heard.keys() == {"loss", "stop"} and not asked
    for request in (asked, other):
      assert request.hear(heard) == sums
      assert request and request.exit_code == 143


def test_one_process_announces_nothing():
  sums = {"loss": 3.0}
  request = signals.StopRequest()
  assert request.announce(sums, make_mesh(1)) is sums
  assert request.hear(sums) == sums
