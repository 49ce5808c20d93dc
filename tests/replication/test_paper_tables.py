"""The paper's own figures: that they are consistent, and where they are not, exactly how."""

import math

import pytest
import scipy.stats

from contdrop.lab import stats
from contdrop.replication import paper_tables

METHODS = ("none", "bernoulli", "adaptive", "dropconnect", "uniform", "gaussian")


def test_every_table_is_complete():
    assert list(paper_tables.TABLES) == [
        "mnist-mlp-sigmoid",
        "mnist-mlp-relu",
        "mnist-cnn-gaussian",
        "mnist-cnn-uniform",
        "cifar10-nin",
        "svhn",
        "norb",
        "ilsvrc-top5",
        "ilsvrc-top1",
    ]
    for name, table in paper_tables.TABLES.items():
        ilsvrc = name.startswith("ilsvrc")
        assert tuple(table.results) == METHODS[ilsvrc:]
        assert table.runs == (10 if ilsvrc else 30)
        for method, result in table.results.items():
            assert (result.t_p is None) == (result.wilcoxon_p is None) == (method == "gaussian")
            assert round(result.mean, table.decimals) == result.mean
            assert round(result.sd, 3) == result.sd > 0


def test_the_authors_code_is_of_the_same_table():
    for name in ("mnist-mlp-sigmoid", "mnist-mlp-relu"):
        assert paper_tables.table_of(name) is paper_tables.TABLES[name]
        theirs = paper_tables.table_of(f"{name}-authors").results
        assert theirs["dropconnect-authors"] is paper_tables.TABLES[name].results["dropconnect"]
        assert theirs["adaptive-authors"] is paper_tables.TABLES[name].results["adaptive"]
        assert theirs["gaussian"] is paper_tables.TABLES[name].results["gaussian"]
        assert not {"adaptive", "dropconnect"} & set(theirs)
    assert paper_tables.table_of("digits-mlp") is None


def test_gaussian_has_the_lowest_mean_except_on_svhn():
    best = {name: min(table.means, key=table.means.get) for name, table in paper_tables.TABLES.items()}
    assert best.pop("svhn") == "uniform"
    assert set(best.values()) == {"gaussian"}


def test_p_values_of_all_wins_tell_how_the_paper_computed_them():
    """9.1e-7 is 30 wins out of 30 with a few ties, approximately; 9.8e-4 is ten out of ten without any, exactly."""
    wins = [-value for value in (*range(2, 31), 30)]
    with_ties = scipy.stats.wilcoxon(wins, alternative="less", correction=True, method="approx").pvalue
    without_ties = stats.signed_rank_test([-value for value in range(1, 11)]).less
    for table in paper_tables.TABLES.values():
        lowest = min(result.wilcoxon_p for result in table.results.values() if result.wilcoxon_p is not None)
        assert f"{lowest:.1e}" == f"{with_ties if table.runs == 30 else without_ties:.1e}"


def test_p_values_of_ilsvrc_are_exact():
    """All are a whole number of the 2^10 equally likely outcomes."""
    for name in ("ilsvrc-top5", "ilsvrc-top1"):
        for result in paper_tables.TABLES[name].results.values():
            if result.wilcoxon_p is not None:
                assert float(f"{round(result.wilcoxon_p * 1024) / 1024:.1e}") == result.wilcoxon_p


# The table whose means each column of Table VIII ranks. The paper does not say which: of its four MNIST columns only
# that of Table II gives these ranks, and both columns of Table VII give those of ILSVRC-2012.
RANKED = {
    "MNIST": "mnist-cnn-gaussian",
    "CIFAR-10": "cifar10-nin",
    "SVHN": "svhn",
    "NORB": "norb",
    "ILSVRC-2012": "ilsvrc-top5",
}


def ranked_means():
    """Without "none", which Table VIII leaves out."""
    return {
        dataset: {method: paper_tables.TABLES[name].means[method] for method in paper_tables.AVERAGE_RANKS}
        for dataset, name in RANKED.items()
    }


def competition_ranks(name):
    means = {method: mean for method, mean in paper_tables.TABLES[name].means.items() if method != "none"}
    return stats.ranks({name: means}, ties="competition").by_dataset[name]


def test_mnist_ranks_are_those_of_table_two_alone():
    same = [
        name
        for name in paper_tables.TABLES
        if name.startswith("mnist") and competition_ranks(name) == paper_tables.RANKS["MNIST"]
    ]
    assert same == ["mnist-cnn-gaussian"] == [RANKED["MNIST"]]
    # Table III differs in a tie only: uniform and Bernoulli have the same mean.
    assert competition_ranks("mnist-cnn-uniform") == {**paper_tables.RANKS["MNIST"], "bernoulli": 2}


def test_both_errors_give_the_ilsvrc_ranks():
    assert competition_ranks("ilsvrc-top5") == competition_ranks("ilsvrc-top1") == paper_tables.RANKS["ILSVRC-2012"]


def test_rank_table_comes_out_but_for_one_tie_that_the_means_do_not_have():
    found = stats.ranks(ranked_means(), ties="competition")
    different = {
        (dataset, method): (paper_tables.RANKS[dataset][method], rank)
        for dataset, row in found.by_dataset.items()
        for method, rank in row.items()
        if rank != paper_tables.RANKS[dataset][method]
    }
    assert different == {("CIFAR-10", "uniform"): (3, 4)}
    means = paper_tables.TABLES["cifar10-nin"].means
    assert (means["adaptive"], means["uniform"]) == (10.46, 10.47)
    assert found.average == pytest.approx({**paper_tables.AVERAGE_RANKS, "uniform": 2.2})


def test_printed_averages_are_those_of_the_printed_ranks():
    for method, average in paper_tables.AVERAGE_RANKS.items():
        assert sum(row[method] for row in paper_tables.RANKS.values()) / len(paper_tables.RANKS) == pytest.approx(
            average
        )


def test_what_the_ranks_show():
    """Figures for the page on deviations."""
    found = stats.compare_ranks(ranked_means(), "gaussian")
    assert scipy.stats.chi2.sf(found.chi_square, 4) == pytest.approx(0.0141, abs=5e-5)
    assert scipy.stats.f.sf(4 * found.chi_square / (20 - found.chi_square), 4, 16) == pytest.approx(0.0024, abs=5e-5)
    assert found.critical_difference == pytest.approx(2.73, abs=5e-3)
    assert found.groups == (
        ("gaussian", "uniform", "dropconnect"),
        ("uniform", "dropconnect", "bernoulli", "adaptive"),
    )
    assert 0.003 < found.permutation_p < 0.007
    rounded = {method: float(f"{p:.2g}") for method, p in found.against_reference.items()}
    assert rounded == {"bernoulli": 0.02, "adaptive": 0.02, "dropconnect": 0.033, "uniform": 0.32}


def possible(table, result, reference, *, correction):
    """Could a paired t-test of runs with these means and standard deviations give this p-value?

    t = difference sqrt(n) / sd, and the sd of differences lies between the difference and the sum of both sds, whatever
    the correlation. All figures may be off by half a unit of their last digit.
    """
    half, half_sd = 0.5 * 10**-table.decimals, 0.0005
    slack = 0.0005 if result.t_p >= 0.005 else 0.05 * 10 ** math.floor(math.log10(result.t_p))
    t = sorted(abs(scipy.stats.t.ppf(p, table.runs - 1)) for p in (result.t_p - slack, result.t_p + slack))
    gap = abs(reference.mean - result.mean)
    smallest = max(gap - 2 * half, 0) * math.sqrt(table.runs) / t[1]
    largest = (gap + 2 * half) * math.sqrt(table.runs) / t[0]
    least = (abs(reference.sd - result.sd) - 2 * half_sd) * correction
    most = (reference.sd + result.sd + 2 * half_sd) * correction
    return smallest <= most and largest >= least


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        (
            "n - 1",
            {("ilsvrc-top5", "dropconnect"), *(("ilsvrc-top1", m) for m in ("bernoulli", "dropconnect", "uniform"))},
        ),
        ("n", {("ilsvrc-top1", "bernoulli"), ("ilsvrc-top1", "uniform")}),
    ],
)
def test_p_values_that_cannot_belong_to_the_means_and_deviations(convention, expected):
    """All but these of ILSVRC-2012 can; which cannot depends on whether the sds divide by n - 1 or by n."""
    impossible = set()
    for name, table in paper_tables.TABLES.items():
        correction = math.sqrt(table.runs / (table.runs - 1)) if convention == "n" else 1.0
        reference = table.results["gaussian"]
        for method, result in table.results.items():
            if method != "gaussian" and not possible(table, result, reference, correction=correction):
                impossible.add((name, method))
    assert impossible == expected


def test_no_dropout_on_svhn_varies_by_half_an_image():
    """Of 26 032: less than one could expect of networks with different seeds."""
    images = paper_tables.TABLES["svhn"].results["none"].sd / 100 * 26_032
    assert images == pytest.approx(0.5, abs=0.05)
