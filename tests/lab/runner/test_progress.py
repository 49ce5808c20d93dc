"""How long the rest takes."""

from contdrop.lab.runner.progress import Estimate
from contdrop.lab.store.schema import Epoch
from contdrop.lab.store.writer import Store
from stores import make_store


def test_more_epochs_than_planned_take_no_negative_time(tmp_path):
    """A loop of the user's own may log as many as it likes."""
    missing = {("gaussian", 0), ("none", 0)}
    path = make_store(tmp_path / "runs.db", methods=("none", "gaussian"), runs=2, epochs=4, images=50, missing=missing)
    with Store(path) as store:
        jobs = store.jobs()
        first, second = (job.id for job in jobs if (job.method, job.run) in missing)
        estimate, before = Estimate(jobs), Estimate(jobs).seconds_left(1)
        estimate.epoch(first, Epoch(9, 1.0, None, None, None, None, None, 0.1, 0.2))
        assert estimate.seconds_left(1) == before / 2
        store.progress(second, [Epoch(n, 1.0, None, None, None, None, None, 0.1, 0.2) for n in range(1, 10)])
        assert Estimate(store.jobs()).seconds_left(1) == before / 2
