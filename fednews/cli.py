"""The command line: parse a command, call one function."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from fednews.errors import FednewsError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a failure, 2 for wrong usage, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    options = _parser().parse_known_args([a for a in arguments if a != "--debug"])
    try:
        _run(*options)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"fednews: {_one_line(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, FednewsError) else 1
    except (KeyboardInterrupt, SystemExit) as stop:
        return _stopped(stop)
    return 0


def _run(options: argparse.Namespace, rest: list[str]) -> None:
    if rest and options.run not in (_train, _bench, _sweep):
        options.parser.error(f"unknown option: {' '.join(rest)}")
    options.rest = rest
    options.run(options)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, FednewsError):
        return text
    if isinstance(error, OSError):
        return f"{error.strerror or text}{f': {error.filename}' if error.filename else ''}"
    return f"unexpected {type(error).__name__}: {text} (--debug shows where)"


def _stopped(stop: BaseException) -> int:
    cause = stop
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, KeyboardInterrupt):
        print("fednews: interrupted", file=sys.stderr)
        return INTERRUPTED
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


_GENERATOR = (  # of ``synthetic_model.Settings``, which has the defaults
    ("impressions_per_user", float, "mean of both splits (default 3)"),
    ("interest", float, "weight of interests in clicks (default 2.3)"),
    ("popularity", float, "weight of an article's appeal, which its text does not tell (default 0.25)"),
    ("recency", float, "weight of an article's age (default 0.3)"),
    ("drift", float, "how far interests walk in a week, 0 to 1 (default 0.2)"),
    ("cold_users", float, "share of users in dev only (default 0.1)"),
    ("empty_history", float, "share of users without history (default 0.03)"),
    ("history", float, "median length of histories (default 20)"),
    ("kinship", float, "share of interests that topics of a category have in common, 0 to 1 (default 0.5)"),
    ("groups", int, "hidden groups of users, each with a click model of its own (default 1)"),
    ("group_strength", float, "how far the click models differ, 0 to 1 (default 1)"),
    ("group_visibility", float, "share of histories that tells the group, below 1 (default 0.4)"),
)


_SWEEP = (
    "'best' writes the winner as an experiment file, 'report' draws the study as it is. Other options are those of "
    "'fednews train' and win over the file's experiment; a study is continued with the same ones."
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fednews", description="Privacy-preserving federated news recommendation.")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    _data_verbs(verbs)
    _run_verbs(verbs)
    return parser


def _verb(verbs, name: str, run: Callable[[argparse.Namespace], None], **kwargs) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, allow_abbrev=False, description=kwargs.get("help"), **kwargs)
    parser.set_defaults(run=run, parser=parser)
    return parser


def _data_verbs(verbs) -> None:
    data = verbs.add_parser("data", help="prepare, make, describe and exchange data sets")
    verbs = data.add_subparsers(required=True, metavar="COMMAND")

    prepare = _verb(verbs, "prepare", _prepare, help="turn raw files into a store")
    prepare.add_argument("format", choices=sorted(_READERS), help="format of the raw files")
    prepare.add_argument("--root", required=True, help="folder (or zip) of the raw files")
    prepare.add_argument("--out", required=True, help="folder of the store to make")
    prepare.add_argument("--min-count", type=int, default=1, help="rarer train words become unknown (default 1)")
    prepare.add_argument("--overwrite", action="store_true", help="replace a store that is there")

    make = _verb(verbs, "synthesize", _synthesize, help="write a synthetic data set in MIND's format")
    make.add_argument("--out", required=True, help="folder to write")
    make.add_argument("--users", type=int, required=True)
    make.add_argument("--news", type=int, required=True)
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--overwrite", action="store_true", help="replace a data set that is there")
    for name, kind, text in _GENERATOR:
        make.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, help=text)

    describe = _verb(verbs, "describe", _describe, help="the counts of a paper's data table")
    describe.add_argument("store", help="folder of a store")

    fetch = _verb(verbs, "download", _download, help="fetch a public data set, after its licence")
    fetch.add_argument("variant", help="which data set, e.g. mind-small")
    fetch.add_argument("--out", required=True, help="folder to write")
    fetch.add_argument("--source", help="hub repository, or a local folder that holds the files")
    fetch.add_argument("--accept-licence", action="store_true", help="accept the licence without being asked")

    export = _verb(verbs, "export", _export, help="write a store as a datasets.DatasetDict")
    export.add_argument("store", help="folder of a store")
    export.add_argument("--out", required=True, help="folder to write")


def _run_verbs(verbs) -> None:
    train = _verb(verbs, "train", _train, help="train and track one experiment", add_help=False)
    train.add_argument("--resume", metavar="RUN_ID", help="continue an interrupted run")

    evaluate = _verb(verbs, "evaluate", _evaluate, help="evaluate a run's model")
    evaluate.add_argument("run_id", help="a run's id, or its unique beginning")
    evaluate.add_argument("--split", default="dev", help="labelled split (default dev)")
    evaluate.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which weights (default last)")
    _serving_options(evaluate)

    runs = _verb(verbs, "runs", _runs, help="list tracked runs")
    runs.add_argument("--limit", type=int, default=20)
    runs.add_argument("--experiment", help="only this experiment's")
    runs.add_argument("--status", help="only those, e.g. FINISHED")

    again = _verb(verbs, "rerun", _rerun, help="train again from a recorded configuration")
    again.add_argument("run_id", help="a run's id, or its unique beginning")
    again.add_argument("--check", action="store_true", help="fail unless metrics and weights agree")

    fill = _verb(verbs, "reproduce", _reproduce, help="train what a table still lacks")
    fill.add_argument("table", help="YAML file of the table, see experiments/tables")
    fill.add_argument("--only", nargs="+", metavar="METHOD", help="only these rows")

    report = _verb(verbs, "report", _report, help="print a table from tracked runs beside the published one")
    report.add_argument("table", help="YAML file of the table, see experiments/tables")
    report.add_argument("--format", choices=("markdown", "latex"), default="markdown")

    _serving_verbs(verbs)
    bench = _verb(
        verbs,
        "bench",
        _bench,
        help="time an experiment's rounds on this machine, or a secure sum: fednews bench secagg --help",
        epilog="All other options are those of 'fednews train'.",
    )
    bench.add_argument("--rounds", type=int, default=5, help="rounds to time, after one to warm up (default 5)")
    bench.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: the process's own time")
    bench.add_argument(
        "--reference-samples", type=int, default=50, help="samples of a round that the plain loop computes (default 50)"
    )
    bench.add_argument("--eval-impressions", type=int, default=2000, help="impressions to rank (default 2000)")
    bench.add_argument("--format", choices=("text", "json"), default="text")

    sweep = _verb(verbs, "sweep", _sweep, help="search settings: run a sweep, or go on with it", epilog=_SWEEP)
    sweep.usage = "fednews sweep [best|report] FILE [options] [--config FILE ...] [--KEY VALUE ...]"
    sweep.add_argument("file", nargs="+", help="YAML file of the sweep, see sweeps/; 'best' or 'report' before it")
    sweep.add_argument("--trials", type=int, help="trials that the study has in the end (default: the file's)")
    sweep.add_argument("--workers", type=int, default=1, help="processes at work (default 1)")
    sweep.add_argument("--storage", help="postgresql://... or a journal's path (default: under mlruns/sweeps)")
    sweep.add_argument("--timeout", type=float, metavar="SECONDS", help="begin no trial after that")
    sweep.add_argument("--trial", type=int, help="with 'best': this trial instead of the first of the best")
    sweep.add_argument("--out", help="with 'best': the file to write (default NAME-best.yaml)")

    ui = _verb(verbs, "ui", _ui, help="open MLflow's UI on the tracking store")
    ui.add_argument("--host", default="127.0.0.1")
    ui.add_argument("--port", type=int, default=5000)


def _serving_verbs(verbs) -> None:
    serve = _verb(verbs, "serve", _serve, help="answer private recommendation queries with a run's model")
    serve.add_argument("run_id", help="a run's id, or its unique beginning")
    serve.add_argument("--checkpoint", choices=("last", "best"), default="last", help="which weights (default last)")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000, help="0 for any free one (default 8000)")
    serve.add_argument("--k-max", type=int, default=100, help="most news of one answer (default 100)")
    serve.add_argument("--demo", action="store_true", help="serve a page that plays devices with the run's data")

    ask = _verb(verbs, "recommend", _recommend, help="ask a service as a user's device")
    ask.add_argument("url", help="what 'fednews serve' printed")
    ask.add_argument("--user", required=True, help="whose device; never sent")
    ask.add_argument("--store", help="prepared data that holds the user's history")
    ask.add_argument("--split", default="dev", help="its split (default dev)")
    ask.add_argument("--history", help="file of news ids, oldest first, in place of --store")
    ask.add_argument("--k", type=int, default=10, help="how many news (default 10)")
    ask.add_argument("--epsilon", type=float, default=1.0, help="of this query (default 1)")
    ask.add_argument("--total-epsilon", type=float, default=10.0, help="of all queries of the device (default 10)")
    ask.add_argument("--total-delta", type=float, default=1e-5, help="delta of that total (default 1e-5)")
    ask.add_argument("--account", help="file of what was spent (default mlruns/devices/USER.json)")


_SERVING = (  # of ``serving.options.ServingOptions``, which has the defaults
    ("padding", float, None, "share of clicks that are replaced (default: as trained, or 0.2)"),
    ("theta", float, None, "largest norm before noise (default: 0.001 for vanilla, else as trained, or 1)"),
    ("noise", str, ("laplace", "gaussian"), "default: gaussian where a delta is given"),
    ("delta", float, None, "of Gaussian noise (default 0.001)"),
    ("sensitivity", str, ("published", "exact"), "that the noise is made for (default published)"),
    ("calibration", str, ("classical", "analytic"), "of Gaussian noise (default classical)"),
    ("activation", str, ("softplus", "relu"), "what makes weights positive (default softplus)"),
)


def _serving_options(parser: argparse.ArgumentParser) -> None:
    text = "the table of private serving at these budgets of one query (inf: no noise)"
    parser.add_argument("--serving.epsilon", dest="serving_epsilon", type=float, nargs="+", metavar="E", help=text)
    known, text = ("privaterec", "vanilla"), "its rows (default: all that the model has)"
    parser.add_argument("--serving.mechanism", dest="serving_mechanism", nargs="+", choices=known, help=text)
    for name, kind, choices, text in _SERVING:
        option = f"--serving.{name}"
        metavar = None if choices else "X"
        parser.add_argument(option, dest=f"serving_{name}", type=kind, choices=choices, metavar=metavar, help=text)


# Imports stand inside the functions: torch and MLflow take seconds to load, and most commands need one of them.


def _mind(root: str):
    from fednews.data.mind import MindReader
    from fednews.data.synthetic import SyntheticReader, best_possible

    return SyntheticReader(root) if best_possible(root) else MindReader(root)


def _ebnerd(root: str):
    from fednews.data.ebnerd import EbnerdReader

    return EbnerdReader(root)


def _adressa(root: str):
    from fednews.data.adressa import AdressaReader

    return AdressaReader(root)


def _datasets(root: str):
    from fednews.data.interchange import DatasetsReader

    return DatasetsReader(root)


_READERS = {"mind": _mind, "ebnerd": _ebnerd, "adressa": _adressa, "datasets": _datasets}


def _prepare(options: argparse.Namespace) -> None:
    from fednews.data.describe import describe, format_description
    from fednews.data.store import write_store
    from fednews.data.synthetic import best_possible

    reader = _READERS[options.format](options.root)
    notes = {"best_possible": best_possible(options.root)}
    store = write_store(reader, options.out, options.overwrite, options.min_count, notes)
    print(format_description(describe(store)))


def _synthesize(options: argparse.Namespace) -> None:
    from fednews.data.synthetic import synthesize

    given = {name: getattr(options, name) for name, *_ in _GENERATOR if hasattr(options, name)}
    truth = synthesize(options.out, options.users, options.news, options.seed, options.overwrite, **given)
    print(truth.summary())


def _describe(options: argparse.Namespace) -> None:
    from fednews.data.describe import describe, format_description
    from fednews.data.store import Store

    print(format_description(describe(Store.open(options.store))))


def _download(options: argparse.Namespace) -> None:
    from fednews.data.download import download

    print(download(options.variant, options.out, options.source, options.accept_licence))


def _export(options: argparse.Namespace) -> None:
    from fednews.data.interchange import export

    export(options.store, options.out)


def _train(options: argparse.Namespace) -> None:
    from fednews.experiment import format_result, resume_command, train_command

    result = resume_command(options.resume, options.rest) if options.resume is not None else train_command(options.rest)
    if result.run_id:  # only the first process of a distributed run has one
        print(format_result(result))


def _evaluate(options: argparse.Namespace) -> None:
    from fednews.experiment import evaluate_run, format_result

    if options.serving_epsilon is not None:
        from fednews.serving.tables import evaluate_run_serving

        made = _made_serving(options)
        table = evaluate_run_serving(
            options.run_id, options.split, options.checkpoint, options.serving_epsilon, options.serving_mechanism, made
        )
        print(table.text())
        return
    _refuse_serving(options)
    print(format_result(evaluate_run(options.run_id, options.split, options.checkpoint)))


def _made_serving(options: argparse.Namespace):
    from fednews.serving.options import ServingOptions

    given = {name: getattr(options, f"serving_{name}") for name, *_ in _SERVING}
    return ServingOptions(**{name: value for name, value in given.items() if value is not None})


def _refuse_serving(options: argparse.Namespace) -> None:
    names = ("mechanism", *(name for name, *_ in _SERVING))
    if given := [name for name in names if getattr(options, f"serving_{name}") is not None]:
        options.parser.error(f"--serving.{given[0]} needs --serving.epsilon")


def _serve(options: argparse.Namespace) -> None:
    from fednews.serving.run import serve_run

    serve_run(options.run_id, options.checkpoint, options.host, options.port, options.k_max, options.demo)


def _recommend(options: argparse.Namespace) -> None:
    from fednews.serving.client import account_of, history_from_file, history_from_store, recommend

    if bool(options.store) == bool(options.history):
        options.parser.error("give the user's history: --store STORE, or --history FILE")
    read = (
        history_from_file(options.history)
        if options.history
        else history_from_store(options.store, options.user, options.split)
    )
    totals = (options.total_epsilon, options.total_delta, options.account or account_of(options.user))
    print(recommend(options.url, options.user, read, options.epsilon, options.k, *totals).text())


def _runs(options: argparse.Namespace) -> None:
    from fednews.tracking.reaper import close_dead_runs
    from fednews.tracking.store import connect
    from fednews.tracking.table import format_runs, list_runs

    client = connect()
    close_dead_runs(client)
    print(format_runs(list_runs(client, options.limit, options.experiment, options.status)))


def _rerun(options: argparse.Namespace) -> None:
    from fednews.experiment import format_result
    from fednews.tracking.rerun import rerun

    print(format_result(rerun(options.run_id, options.check)))


def _reproduce(options: argparse.Namespace) -> None:
    from fednews.report.reproduce import reproduce

    reproduce(options.table, options.only)


def _report(options: argparse.Namespace) -> None:
    from fednews.report.reproduce import report

    print(report(options.table, options.format))


def _bench(options: argparse.Namespace) -> None:
    from fednews.bench.command import bench_command

    print(bench_command(options))


def _sweep(options: argparse.Namespace) -> None:
    action, path = ["run", *options.file][-2:]
    if len(options.file) > 2 or action not in ("run", "best", "report"):
        options.parser.error(f"give one sweep file, not {' '.join(options.file)}")
    if action == "run":
        from fednews.tuning import server

        server.prepare()  # workers' imports beside our own
    from fednews.tuning import launch, report

    if action == "run":
        launch.run_sweep(path, options.rest, options.trials, options.workers, options.storage, options.timeout)
    elif action == "report":
        print(launch.redraw(path, options.rest, options.storage))
    else:
        study = launch.open_study(path, options.rest, options.storage)
        print(report.write_best(study, options.trial, options.out))


def _ui(options: argparse.Namespace) -> None:
    from fednews.tracking.ui import serve_ui

    serve_ui(options.host, options.port)


if __name__ == "__main__":
    sys.exit(main())
