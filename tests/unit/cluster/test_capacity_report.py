import json

from chairlift.cluster.capacity import Question, Targets, Wishes
from chairlift.cluster.capacity_devices import CPU, DEVICES, Device, efficiencies
from chairlift.cluster.capacity_model import Lengths, Load, given_figures
from chairlift.cluster.capacity_report import Report, make_report

MODEL = given_figures(8.03e9, "bfloat16", (32, 32, 8, 128), 2.0)
LOAD = Load(20, Lengths(1000, 3000), Lengths(300, 900))


def report(per_token_s: float = 0.05, spares: int = 1, device: Device = DEVICES["h100"]) -> Report:
    wishes = Wishes(2048, 2 * 1024**3, spares=spares, price=3.0)
    question = Question(MODEL, device, LOAD, Targets(1.0, per_token_s), wishes)
    return make_report(question, 1, efficiencies(device))


def test_every_figure_has_a_formula_and_lies_within_its_bounds():
    figures = report().figures
    assert len(figures) > 15
    for each in figures:
        assert each.low <= each.value <= each.high, each
        assert each.formula
    named = {each.name: each for each in figures}
    assert named["weights"].value == 2 * 8.03e9
    assert named["KV cache per token"].low == named["KV cache per token"].high == 131_072
    step = named["step of one sequence"]
    assert step.low < step.value < step.high


def test_the_report_is_json_with_all_that_was_assumed():
    tree = json.loads(json.dumps(report().as_json()))
    assert tree["assumptions"]["expected"]["memory"] == 0.7
    assert tree["device"]["source"].startswith("https://www.nvidia.com/")
    assert set(tree["figures"]["seats, per replica"]) == {"value", "low", "high", "unit", "formula"}


def test_the_cache_is_for_the_seats_and_no_larger_than_the_room():
    found = report(0.03)
    wanted = found.expected.seats * LOAD.held * MODEL.kv_bytes()
    assert wanted < found.kv_memory < 1.3 * wanted
    full = report(9.0)
    assert full.kv_memory <= full.expected.kv_room
    assert full.kv_memory % 1024**2 == 0


def test_what_a_reader_has_to_know_is_said():
    assert any("aims, not measurements" in line for line in report().cautions)
    assert any("not met even" in line for line in report(0.001).cautions)
    assert any("no spare" in line for line in report(spares=0).cautions)
    measured = Device(CPU, 80e9, 3350e9, DEVICES["h100"].flops, 0, "measured")
    assert report(device=measured).cautions == []


def test_the_most_replicas_are_those_of_the_worst_case():
    found = report()
    assert found.max_replicas == found.worst.replicas >= found.expected.replicas
