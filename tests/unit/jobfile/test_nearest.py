from zmqps.jobfile.nearest import allowed, nearest


def test_a_slip_finds_its_word() -> None:
    assert nearest("bacth", ["batch", "epochs"]) == "batch"
    assert nearest("BATCH", ["Batch", "epochs"]) == "Batch"


def test_a_strange_word_finds_nothing() -> None:
    assert nearest("zzzz", ["batch", "epochs"]) is None
    assert nearest("", ["batch"]) is None


def test_allowed_lists_all_and_suggests_one() -> None:
    assert allowed("bacth", ["batch", "l2"]) == "did you mean batch? allowed: batch, l2"
    assert allowed("zzzz", ["batch", "l2"]) == "allowed: batch, l2"
