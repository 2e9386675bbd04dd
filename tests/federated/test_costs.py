import time

import pytest

from fednews.federated.costs import Messages, RoundCosts


@pytest.fixture
def costs():
    return RoundCosts()


def test_time_inside_a_clock_does_not_count_for_the_one_around_it(costs):
    def parts():
        for number in range(3):
            time.sleep(0.02)
            yield number

    started = time.perf_counter()
    with costs.clock("simulation"):
        with costs.clock("client"), costs.clock("aggregation"):
            for _ in costs.timed(parts()):
                time.sleep(0.01)
        with costs.clock("server"):
            time.sleep(0.04)
    whole = time.perf_counter() - started
    assert costs.seconds["client"] >= 0.06
    assert costs.seconds["aggregation"] >= 0.03
    assert costs.seconds["server"] >= 0.04
    assert sum(costs.seconds.values()) == pytest.approx(whole, abs=1e-3)


def test_a_clock_stops_where_its_block_fails(costs):
    with costs.clock("simulation"), pytest.raises(ValueError, match="here"), costs.clock("client"):
        raise ValueError("here")
    before = costs.seconds["client"]
    with costs.clock("server"):
        time.sleep(0.01)
    assert costs.seconds["client"] == before


def test_bytes_add_up_over_kinds_and_attempts(costs):
    costs.send(Messages(receivers=5, senders=4, down={"model": 100}, up={"update": 30}))
    costs.send(Messages(receivers=3, senders=0, down={"model": 100}, up={}))
    costs.carry("aggregation", up=7, down=11)
    assert costs.traffic() == {
        "bytes_down": 811,
        "bytes_down_aggregation": 11,
        "bytes_down_model": 800,
        "bytes_down_per_client": 811 / 8,
        "bytes_up": 127,
        "bytes_up_aggregation": 7,
        "bytes_up_update": 120,
        "bytes_up_per_client": 127 / 4,
    }, "a kind without a byte is left out"


def test_a_round_of_nobody_costs_nothing(costs):
    costs.send(Messages(0, 0, {"model": 10}, {"update": 10}))
    assert not any(costs.traffic().values())
    assert not any(costs.times().values())
