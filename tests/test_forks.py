"""What is called in a forked child: every object that asked for it, whichever thread made it."""

from __future__ import annotations

import threading

from bloomguard import forks


class Told:
    """Counts how often it is called."""

    def __init__(self):
        self.times = 0
        forks.after_fork(self.tell)

    def tell(self):
        self.times += 1


def test_objects_that_threads_make_at_once_are_all_told(monkeypatch):
    """Two requests may make the first locks and filters of a process side by side."""
    made, threads = [], []

    class Methods(list):
        def __setitem__(self, *args):
            """Just before the list is replaced, another thread registers an object of its own."""
            if not threads:
                threads.append(threading.Thread(target=lambda: made.append(Told())))
                threads[0].start()
                threads[0].join(0.1)
            super().__setitem__(*args)

    monkeypatch.setattr(forks, "_methods", Methods())
    monkeypatch.setattr(forks, "_pruned", -1)  # so the list is replaced now
    made.append(Told())
    threads[0].join()

    forks._run()

    assert [each.times for each in made] == [1, 1]


def test_what_is_gone_is_not_told(monkeypatch):
    """The list keeps nobody alive, and does not grow by those who are gone."""
    monkeypatch.setattr(forks, "_methods", [])
    kept = Told()
    for _ in range(1_000):
        Told()

    forks._run()

    assert kept.times == 1
    assert len(forks._methods) < 250


def test_a_lock_of_ones_own_is_made_anew(monkeypatch):
    """Another thread of the parent may hold it while it forks: the child's is free."""
    monkeypatch.setattr(forks, "_methods", [])

    class Owner:
        def __init__(self):
            self.turn = forks.own_lock(self, "turn")

    kept, before = [Owner() for _ in range(2)], []
    for each in kept:
        before.append(each.turn)
        assert each.turn.acquire(blocking=False)
    del kept[1], each

    forks._run()

    assert kept[0].turn is not before[0]
    assert kept[0].turn.acquire(blocking=False)
    assert [known() is None for known in forks._methods] == [False, True]
