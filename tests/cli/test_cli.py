"""The command line says what is wrong in one sentence, and prints what machines can read."""

import json

import pytest

from esper.cli import main
from esper.cli.sizes import size_in_bytes
from esper.leyline.errors import EsperError


def test_bench_fleet_prints_one_json_object(capsys):
    main(["bench", "fleet", "--quick", "--json", "--hosts", "2", "--seeds", "none", "live", "--decisions", "2"])
    found = json.loads(capsys.readouterr().out)
    assert found["device"].startswith("CPU")
    ways = [(row["way"], row["hosts"], row["seeds"]) for row in found["rows"]]
    assert ways == [("loop", 4, "none"), ("fleet", 2, "none"), ("fleet", 2, "live")]
    for row in found["rows"]:
        assert row["work"] == "mnist1d"
        assert row["samples_per_s"] > 0
        assert row["ratio"] == pytest.approx(row["samples_per_s"] / found["rows"][0]["samples_per_s"], abs=0.01)


def test_bench_ppo_prints_one_json_object(capsys):
    main(["bench", "ppo", "--quick", "--json", "--minibatches", "1", "--hosts", "2", "--decisions", "6"])
    found = json.loads(capsys.readouterr().out)
    assert [row["who"] for row in found["rows"]] == ["esper", "sb3_recurrent", "sb3_maskable"]
    slow = found["rows"][1]["update_ms"]
    for row in found["rows"]:
        assert row["minibatches"] == 1
        assert row["decisions"] == 12
        assert min(row["update_ms"], row["act_ms"]) > 0
        assert row["ratio"] == pytest.approx(slow / row["update_ms"], rel=0.01, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "ppo", "--hosts", "0"], "hosts must be at least 1"),
        (["bench", "ppo", "--minibatches", "9"], "minibatches (9) hold whole lives, and there are only 8"),
        (["bench", "fleet", "--work", "nist"], "unknown work 'nist': did you mean 'mnist1d'?"),
        (["bench", "fleet", "--hosts", "0"], "hosts must be positive"),
        (["bench", "fleet", "--device", "gpu7"], "device 'gpu7' is none that torch knows"),
        (["bench", "fleet", "--quick", "--memory-budget", "lots"], "memory_budget must be a size such as 2GB"),
        (["bench", "fleet", "--quick", "--seeds", "none", "--memory-budget", "50KB"], "hosts would fit"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("esper: ")
    assert message in error


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(EsperError, match="hosts must be positive"):
        main(["bench", "fleet", "--hosts", "0", "--debug"])


def test_unknown_flags_suggest_the_right_one(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["bench", "fleet", "--hots", "3"])
    assert exit.value.code == 2
    assert "--hosts" in capsys.readouterr().err


def test_lists_are_readable_by_people_and_machines(capsys):
    main(["tasks", "--json"])
    assert "mnist1d" in json.loads(capsys.readouterr().out)
    main(["blueprints", "--json"])
    assert {"stream", "name", "summary"} == set(json.loads(capsys.readouterr().out)[0])
    main(["blueprints"])
    assert "conv_heavy" in capsys.readouterr().out
    main(["tasks"])
    assert capsys.readouterr().out.splitlines()[0] == "mnist1d"


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 << 30), ("1.5 mb", 3 << 19), ("100", 100), ("4k", 4096)])
def test_sizes(text, size):
    assert size_in_bytes(text) == size
