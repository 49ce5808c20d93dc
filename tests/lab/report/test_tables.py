# ruff: noqa: RUF001  (Greek letters and minus signs are what is tested)
"""Tables of the report: the paper's layout, the careful one, and three ways of writing them."""

import csv
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stores
from contdrop import lab
from contdrop.cli import session
from contdrop.lab import stats
from contdrop.lab.analysis.comparisons import compare
from contdrop.lab.analysis.metric_format import Measure
from contdrop.lab.analysis.verdict import analyze, verdict
from contdrop.lab.report import formats, protocol, supplementary_tables, tables
from contdrop.lab.report.formats import Cell, Table
from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store
from contdrop.replication import paper_report, paper_tables


def _results(path, name="s", **options):
    with Store(stores.make_store(path / f"{name}.db", **options)) as store:
        return collect_all(store)[0]


def _column(table, heading):
    return [row[table.headings.index(heading)] for row in table.rows]


PAPER = {"methods": ("none", "gaussian"), "paper_runs": 30, "paper_epochs": 2}
NONE = {"methods": ("none", "gaussian"), "reference": "none"}
TABLES = {
    "as in the paper": {"runs": 8, "experiment": "mnist-mlp-relu"},
    "far below the paper's size": {
        "experiment": "mnist-mlp-sigmoid", "methods": stores.ALL_METHODS, "runs": 6, "epochs": 4, "paper_runs": 30,
        "paper_epochs": 3000, "selection": True,
    },
    "of the paper's size": {"experiment": "mnist-cnn-gaussian", "runs": 30, "epochs": 2, **PAPER},
    "a study of one's own": {"runs": 8, **NONE},
    "one run": {"runs": 1},
    "two runs": {"runs": 2, "failed": [("uniform", 1)]},
    "five runs": {"runs": 5, "selection": True},
    "six runs": {"runs": 6},
    "one pair of one method, four of another": {
        "runs": 7, "missing": [("none", run) for run in range(1, 7)] + [("uniform", run) for run in range(4, 7)],
    },
    "different runs": {
        "runs": 8, "failed": [("gaussian", 0), ("none", 1)], "missing": [("none", 2), ("uniform", 3)],
    },
    "without the reference": {"runs": 2, "missing": [("gaussian", 0), ("gaussian", 1)]},
}  # fmt: skip


def _written(results):
    analysis = analyze(results)
    found = (
        tables.comparison(analysis),
        tables.differences(analysis),
        supplementary_tables.selections(results),
        supplementary_tables.failures(results),
    )
    return "\n".join(formats.markdown(table) for table in found if table)


def test_tables(tmp_path, snapshot):
    """Every cell and note, for stores of every kind."""
    parts = []
    for name, options in TABLES.items():
        parts += [f"## {name}", "", _written(_results(tmp_path, name, **options))]
    for values in ([0.971], [0.971, 0.972, 0.973]):  # without a spread, differences have digits of their own
        one = lab.analyze({"a": values, "b": [each - 0.002 for each in values]}, metric="auroc", better="higher")
        parts += [f"## {len(values)} values", "", _written(one.results)]
    parts += ["## a factor of the learning rate", "", _written(_with_factor(tmp_path))]
    snapshot("tables", "\n".join(parts))


def _with_factor(path):
    """Results of methods with a factor of their own, of which one only is called like one."""
    results = _results(path, "factor", runs=2, methods=("original", "gaussian", "a@0.5"), selection=True)
    variants = {"original": "original@0.5", "gaussian": "gaussian:sigma=0.2@0.5"}
    jobs = tuple(dataclasses.replace(job, variant=variants.get(job.method, job.method)) for job in results.final)
    candidates = {
        "gaussian:sigma=0.2@0.5": {"val_error": 2.0, "val_errors": [2.0, 2.1]},
        "gaussian:sigma=0.2": {"val_error": 3.0, "val_errors": [3.0, 3.2]},
    }
    chosen = dataclasses.replace(results.selections["gaussian"], variant=next(iter(candidates)), candidates=candidates)
    found = dataclasses.replace(results, final=jobs, selections={"gaussian": chosen})
    half = "Gaussian: Gaussian σ=0.2 at 0.5 times the learning rate ("
    assert any(half in each for each in dict(protocol.protocol(found))["Selected"])
    return found


def test_the_comparison_is_that_of_the_statistics_in_the_papers_layout(tmp_path):
    results = _results(tmp_path, runs=8, experiment="mnist-mlp-relu")
    table, errors = tables.comparison(analyze(results)), results.errors()
    found = stats.compare_paired(errors["gaussian"], errors["bernoulli"])
    p_values = "/".join(map(formats.p_value, (found.t_p, found.wilcoxon_p)))
    assert table.rows[1][1] == Cell(f"{found.other.mean:.2f} ± {found.other.sd:.3f} ({p_values})", found.other.mean)


def test_the_terminal_shows_the_cells_of_the_table(tmp_path, capsys):
    """The paper's one-sided p-value of "the reference is better" is near 1 where the new method is better."""
    results = _results(tmp_path, runs=8, **NONE)
    table, found = tables.comparison(analyze(results)), compare(results)["gaussian"]
    assert found.t_p > 0.99
    low, high = found.interval
    assert table.rows[1][2] == Cell(f"+{found.difference:.2f} [+{low:.2f}, +{high:.2f}]", found.difference)
    assert table.rows[1][3] == Cell(formats.p_value(found.t_p_two_sided_holm), found.t_p_two_sided_holm)
    session.show_summary(analyze(results))
    shown = capsys.readouterr().out
    assert all(cell.text in shown for row in table.rows for cell in row)


def test_differences_are_of_the_runs_that_both_have(tmp_path):
    results = _results(tmp_path, **TABLES["different runs"])
    errors = results.errors()
    shared = sorted(errors["gaussian"].keys() & errors["none"].keys())
    expected = np.mean([errors["gaussian"][run] - errors["none"][run] for run in shared])
    assert _column(tables.differences(analyze(results)), "Difference")[0].value == pytest.approx(expected)


# ---- the paper's layout


@pytest.mark.parametrize(
    ("mean", "sd", "expected"),
    [
        (0.78874, 0.01271, "0.7887 ± 0.0127"),
        (0.78901, 0.0148, "0.789 ± 0.0148"),
        (23.9217, 0.2125, "23.92 ± 0.212"),
        (0.98723, 0.000214, "0.98723 ± 0.000214"),
        (123.456, 0.0345, "123.456 ± 0.0345"),
        (1234.567, 0.216, "1234.57 ± 0.216"),
        (-10233.4471, 1.163, "-10233.4 ± 1.16"),
        (10233.4471, 1163.4, "10233 ± 1163"),
        (1000000.0034, 0.0031, "1000000.0034 ± 0.0031"),
        (1.2345678e9, 1.2e4, "1.234568e+09 ± 12000"),
        (1.0362e13, 2.532e11, "1.036e+13 ± 2.53e+11"),
        (1.0452e-9, 3.6e-11, "1.045e-09 ± 3.6e-11"),
        (0.1, 1.4e-17, "0.1 ± 1.4e-17"),
        (5.0, 0.0, "5 ± 0"),
        (0.0, 0.0127, "0.000 ± 0.0127"),
        (0.0, 1e-300, "0.000000000000 ± 1e-300"),
        (1e200, float("inf"), "1e+200 ± inf"),
        (54321.25, float("nan"), "54321.25"),
    ],
)
def test_a_mean_has_the_digits_that_its_spread_needs(mean, sd, expected):
    assert formats.mean_sd(stats.Summary(mean, sd, 8), Measure("elbo", "nats")) == expected


def test_large_values_are_told_apart_wherever_they_stand():
    values = {"a": [-10233.5, -10234.1, -10232.6, -10233.2, -10233.9, -10232.8], "b": [-10236.4] * 6}
    results = lab.analyze(values, metric="elbo", unit="nats", better="higher").results
    shown = [cell.text for cell in _column(tables.overview(analyze(results)), "Test elbo, nats")]
    assert shown == ["-10233.35 ± 0.596", "-10236.4 ± 0"]
    (finding,) = verdict(results).findings
    assert finding.text.startswith("A has a test elbo of -10233.35 nats, b -10236.4 nats: 3.05 nats higher")
    assert Measure("elbo", "").gap(12345.6) == "12346"


def test_runs_that_stop_early_are_not_said_to_have_all_epochs(tmp_path, capsys):
    results = _results(tmp_path, runs=2, epochs=4, methods=("none", "gaussian"))
    shorter = tuple(dataclasses.replace(job, epochs_done=4 - job.run) for job in results.final)
    stopped = dataclasses.replace(results, final=shorter)
    assert [protocol.size_of(each) for each in (results, stopped)] == [
        "2 runs of 4 epochs each, preset “quick”",
        "2 runs of up to 4 epochs each, preset “quick”",
    ]
    session.show_summary(analyze(stopped))
    assert "2 paired runs of up to 4 epochs (quick)" in capsys.readouterr().out
    planned = dataclasses.replace(results, final=())
    assert protocol.length_of(planned) == "4 epochs"
    results.protocol.configuration["patience"] = 1
    assert protocol.length_of(planned) == "up to 4 epochs"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"methods": ("none", "gaussian"), "missing": [("gaussian", run) for run in range(3, 10)]},
            ": 3 paired runs of",
        ),
        ({"methods": ("none", "gaussian", "uniform"), "missing": [("none", 4)]}, ": 9 to 10 paired runs of"),
        ({"methods": ("gaussian",)}, ": 10 runs of"),
    ],
)
def test_the_title_in_the_terminal_counts_pairs(tmp_path, capsys, options, said):
    session.show_summary(analyze(_results(tmp_path, runs=10, **options)))
    assert said in capsys.readouterr().out


def test_p_values_are_written_as_in_the_paper():
    for table in paper_tables.TABLES.values():
        for result in table.results.values():
            for p in (result.t_p, result.wilcoxon_p):
                if p is not None:
                    assert float(formats.p_value(p)) == p
    assert [formats.p_value(p) for p in (9.127e-7, 0.0314, 0.9816, 0.0, math.nan, None)] == [
        "9.1e-7", "0.031", "0.982", "<1e-300", "–", "–",
    ]  # fmt: skip


# ---- the careful table


def test_differences_agree_with_the_statistics(tmp_path):
    results = _results(tmp_path, runs=10)
    table = tables.differences(analyze(results, 0.5))
    errors = results.errors()
    others = [method for method in errors if method != "gaussian"]
    found = stats.adjusted({m: stats.compare_paired(errors["gaussian"], errors[m], margin=0.5) for m in others})
    for (method, expected), row in zip(found.items(), table.rows):
        values = dict(zip(table.headings, row))
        answers = [results.contributions["gaussian", run] - results.contributions[method, run] for run in range(10)]
        assert np.mean(answers) == pytest.approx(expected.difference)
        numbers = {
            "Difference": expected.difference, "p (t)": expected.t_p_two_sided, "Holm (t)": expected.t_p_two_sided_holm,
            "p (W)": expected.wilcoxon_p_two_sided, "Holm (W)": expected.wilcoxon_p_two_sided_holm,
            "Effect d": expected.effect, "Detectable": expected.minimum_detectable,
            "Equivalent p": expected.equivalence_p_holm,
        }  # fmt: skip
        assert {heading: values[heading].value for heading in numbers} == pytest.approx(numbers), method
        two_way = stats.two_way_interval(answers)
        intervals = {
            "95 % interval": expected.interval,
            "Runs and examples": two_way,
            "Simultaneous": expected.simultaneous,
        }
        texts = {heading: f"[{', '.join(map(formats.signed, ends))}]" for heading, ends in intervals.items()}
        texts["Wins/ties/losses"] = f"{expected.wins}/{expected.ties}/{expected.losses}"
        texts |= {"Difference": formats.signed(expected.difference), "Pairs": "10"}
        assert {heading: values[heading].text for heading in texts} == texts, method
    assert any("less than ±0.50 points, chosen after the fact;" in note for note in table.notes)
    assert "small-sample widened BCa" in table.notes[0]
    assert any("a tenth of the error of the reference" in note for note in tables.differences(analyze(results)).notes)


def test_signed_numbers():
    values = {-0.254: "−0.25", 0.3: "+0.30", -0.001: "0.00", 0.0: "0.00", math.inf: "∞", -math.inf: "−∞", math.nan: "–"}
    assert {value: formats.signed(value) for value in values} == values


# ---- the others


def test_mcnemar_counts_images_and_runs(tmp_path):
    with Store(
        stores.make_store(tmp_path / "s.db", methods=("none", "gaussian"), runs=3, levels={"none": 12.0})
    ) as store:
        (results,) = collect_all(store)
        table = supplementary_tables.mcnemar(results, store)
        pairs = [
            [store.artefact(results.job(method, run).id, "test_predictions") for method in ("gaussian", "none")]
            for run in range(3)
        ]
        labels = store.artefact(results.finished[0].id, "test_labels")
    (row,) = table.rows
    only_ours = np.mean([np.sum((ours == labels) & (theirs != labels)) for ours, theirs in pairs])
    assert row[1].value == pytest.approx(only_ours)
    assert row[4].text == "3 of 3"
    assert row[5].text == "0 of 3"


def test_ranks_need_three_data_sets_and_count_each_once(tmp_path):
    levels = {"none": 9.0, "bernoulli": 7.0, "uniform": 5.0, "gaussian": 3.0}
    for number, name in enumerate(("digits", "mnist", "svhn")):
        for experiment in (f"{name}-mlp", f"{name}-more"):
            stores.make_store(
                tmp_path / "s.db", experiment=experiment, dataset=name, seed=number, levels=levels,
                methods=tuple(levels), runs=2 + experiment.endswith("more"), noise=0.01,
            )  # fmt: skip
        with Store(tmp_path / "s.db") as store:
            table = supplementary_tables.ranks(collect_all(store))
        assert (table is None) == (number < 2)
    assert table.headings == (
        "Method", "digits", "mnist", "svhn", "Average", "p against Gaussian", "The paper's average"
    )  # fmt: skip
    assert [row[0].text for row in table.rows] == ["Gaussian", "Uniform", "Bernoulli", "No dropout"]
    assert [[cell.text for cell in row[1:5]] for row in table.rows] == [
        ["1", "1", "1", "1.00"], ["2", "2", "2", "2.00"], ["3", "3", "3", "3.00"], ["4", "4", "4", "4.00"],
    ]  # fmt: skip
    assert [row[-1].text for row in table.rows] == ["1.2", "2", "4", "–"]
    assert table.rows[0][4].bold
    assert "mnist: mnist-more, 3 runs of 5 epochs each" in table.notes[0]
    assert re.search(r"Friedman test: chi-square 9\.00, p = 1\.\de-3 by permutation", table.notes[1])


def test_studies_on_the_same_data_are_one_data_set(tmp_path):
    """Those of a user have no name of the data; the fingerprint of their content says what they are."""
    for number, name in enumerate(("one", "two", "three")):
        stores.make_store(tmp_path / "s.db", experiment=name, dataset="d", seed=number, runs=2)
    with Store(tmp_path / "s.db") as store:
        every = collect_all(store)
    nameless = [
        dataclasses.replace(each, protocol=dataclasses.replace(each.protocol, configuration={})) for each in every
    ]
    assert [each.dataset for each in nameless] == ["one", "two", "three"]
    assert supplementary_tables.ranks(nameless) is None


def test_ranks_as_in_the_paper_are_of_its_methods_and_data_sets_alone(tmp_path):
    """Generated and regenerated data are no data sets of the paper, and no dropout has no rank in it."""
    levels = {"none": 1.0, "bernoulli": 7.0, "adaptive": 8.0, "dropconnect": 6.0, "uniform": 5.0, "gaussian": 4.0}
    for number, name in enumerate(("mnist", "norb-generated", "svhn-extra")):
        levels["gaussian"] += 1.5 * (name == "svhn-extra")
        stores.make_store(
            tmp_path / "s.db", experiment=f"{name}-any", dataset=name, seed=number, levels=levels,
            methods=tuple(levels), runs=2, noise=0.01,
        )  # fmt: skip
        with Store(tmp_path / "s.db") as store:
            table = paper_report.paper_ranks(collect_all(store))
        assert (table is None) == (number < 2)
    assert table.headings == ("Method", "MNIST", "SVHN", "Average", "The paper's average")
    assert {row[0].text: [cell.text for cell in row[1:]] for row in table.rows} == {
        "Bernoulli": ["4 (3)", "4 (4)", "4.00", "4"],
        "Adaptive": ["5 (5)", "5 (5)", "5.00", "4"],
        "DropConnect": ["3 (4)", "3 (3)", "3.00", "3.6"],
        "Uniform": ["2 (2)", "1 (1)", "1.50", "2"],
        "Gaussian": ["1 (1)", "2 (2)", "1.50", "1.2"],
    }
    assert "SVHN: svhn-extra-any, 2 runs" in table.notes[0]


# ---- writing

ODD = Table(
    "odd",
    "A <b>bold</b> title with $x_1$",
    ("Method", "=SUM(A1)", ""),
    (
        (Cell("<script>alert(1)</script>"), Cell("a|b *c* _d_ `e` [f](g) ~h~ #i \\"), Cell("1.5", 1.5, bold=True)),
        (Cell('50 % & "quoted", {x}^2\nnext'), Cell("=cmd|' /C calc'!A0"), Cell("−0.33", -1 / 3)),
    ),
    ("A note with 5 % & $.",),
)


def test_markdown_escapes_everything():
    lines = formats.markdown(ODD).splitlines()
    assert lines[0] == "**A &lt;b&gt;bold&lt;/b&gt; title with \\$x\\_1\\$**"
    assert lines[3] == "| --- | --- | --- |"
    assert lines[4] == (
        "| &lt;script&gt;alert(1)&lt;/script&gt; "
        "| a\\|b \\*c\\* \\_d\\_ \\`e\\` \\[f\\](g) \\~h\\~ \\#i \\\\ | **1.5** |"
    )
    assert lines[-1] == "A note with 5 % &amp; \\$."


def test_latex_escapes_everything_and_uses_booktabs():
    text = formats.latex(ODD)
    assert "\\caption{A \\textless{}b\\textgreater{}bold\\textless{}/b\\textgreater{} title with \\$x\\_1\\$}" in text
    assert "\\begin{tabular}{llr}" in text
    assert all(rule in text for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    assert "50 \\% \\& \\textquotedbl{}quoted\\textquotedbl{}, \\{x\\}\\textasciicircum{}2 next & " in text
    assert " & \\textbf{1.5} \\\\" in text
    assert " & $-$0.33 \\\\" in text
    assert "A note with 5 \\% \\& \\$.\\par" in text


def test_latex_makes_the_mean_bold_and_keeps_brackets_from_being_options(tmp_path):
    results = _results(tmp_path, runs=6)
    best = r"Gaussian \$\\sigma\$=0.3 & \\textbf\{\d\.\d\d\} \$\\pm\$ 0\.\d{3} &  &  & 0\.\d{3} & 6 \\\\"
    assert re.search(best, formats.latex(tables.comparison(analyze(results))))
    assert " & {[$-$" in formats.latex(tables.differences(analyze(results)))


def _braces_balance(text):
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=30))
def test_any_text_is_safe_in_every_format(text):
    table = Table("t", text, (text, "b"), ((Cell(text), Cell(text, 1.0, bold=True)),), (text,))
    row = formats.markdown(table).splitlines()[4]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3, row
    assert "<" not in formats.markdown(table)
    latex = formats.latex(table)
    assert _braces_balance(latex)
    body = latex.split("\\midrule\n")[1].splitlines()[0]
    assert len(re.findall(r"(?<!\\)&", body)) == 1
    assert not re.search(r"(?<!\\)[%#]", body)
    parsed = list(csv.reader(io.StringIO(formats.csv(table))))
    assert [len(row) for row in parsed] == [2, 2]
    for value in parsed[1]:
        assert value[:1] not in ("=", "+", "-", "@") or _is_number(value)


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_csv_holds_full_precision_and_no_formulas():
    headings, first, second = csv.reader(io.StringIO(formats.csv(ODD)))
    assert headings == ["Method", "'=SUM(A1)", ""]
    assert first == ["<script>alert(1)</script>", "a|b *c* _d_ `e` [f](g) ~h~ #i \\", "1.5"]
    assert second == ['50 % & "quoted", {x}^2 next', "'=cmd|' /C calc'!A0", repr(-1 / 3)]


def test_tables_for_programs_have_a_column_for_each_number(tmp_path):
    results = _results(tmp_path, runs=7, failed={("none", 3)})
    comparisons = compare(results)
    table = tables.differences(analyze(results))
    rows = list(csv.DictReader(io.StringIO(formats.csv(table))))
    assert [row["method"] for row in rows] == list(comparisons)
    for row, found in zip(rows, comparisons.values()):
        exact = {
            "difference": found.difference, "difference_sd": found.sd, "method_mean": found.other.mean,
            "method_sd": found.other.sd, "reference_mean": found.reference.mean, "reference_sd": found.reference.sd,
            "interval_low": found.interval[0], "interval_high": found.interval[1],
            "two_way_low": found.two_way[0], "two_way_high": found.two_way[1],
            "simultaneous_low": found.simultaneous[0], "simultaneous_high": found.simultaneous[1],
            "t_p": found.t_p, "t_p_two_sided_holm": found.t_p_two_sided_holm, "wilcoxon_p": found.wilcoxon_p,
            "equivalence_p": found.equivalence_p, "equivalence_p_holm": found.equivalence_p_holm,
            "wins": found.wins, "ties": found.ties, "losses": found.losses, "pairs": found.runs,
        }  # fmt: skip
        assert {name: float(row[name]) for name in exact} == exact
    assert all(character.isascii() for character in formats.csv(table))
    loaded = json.loads(formats.json(table))
    assert loaded["rows"][0]["interval_low"] == next(iter(comparisons.values())).interval[0]
    assert loaded["notes"] == list(table.notes)
    assert any("Runs that failed or diverged have no value and are left out" in note for note in table.notes)
    means = list(csv.DictReader(io.StringIO(formats.csv(tables.comparison(analyze(results))))))
    for row in means:
        expected = stats.summary(list(results.errors()[row["method"]].values()))
        assert (float(row["mean"]), float(row["sd"]), int(row["runs"])) == (expected.mean, expected.sd, expected.n)


def test_what_does_not_exist_is_empty_or_null_for_programs(tmp_path):
    table = tables.differences(analyze(_results(tmp_path, runs=1)))
    (row, *_) = csv.DictReader(io.StringIO(formats.csv(table)))
    assert row["interval_low"] == row["t_p"] == row["difference_sd"] == ""
    assert json.loads(formats.json(table))["rows"][0]["t_p"] is None


def test_csv_has_large_numbers_as_numbers_and_an_ascii_minus():
    row = Cell("1,234", 1234.5), Cell("1,234,567 †", 1234567.0), Cell("1,234 of 5", 1234.0), Cell("[−0.3, +0.1]", -0.3)
    expected = 'a,b,c,d\r\n1234.5,1234567,"1,234 of 5","[-0.3, +0.1]"\r\n'
    assert formats.csv(Table("t", "", ("a", "b", "c", "d"), (row,))) == expected
