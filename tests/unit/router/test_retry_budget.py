from chairlift.router.retry_budget import RetryBudget


def moves(budget: RetryBudget, tenant: str, now: float, tries: int = 50) -> int:
    return sum(budget.allow_move(tenant, now) for _ in range(tries))


def test_a_share_of_a_minutes_requests_may_move():
    budget = RetryBudget(0.1, floor=2)
    for second in range(100):
        budget.started("t", second)
    assert moves(budget, "t", 99.0) == 6


def test_so_many_may_move_in_any_case():
    budget = RetryBudget(0.1, floor=2)
    assert moves(budget, "t", 0.0) == 2
    assert moves(budget, "t", 59.9) == 0
    assert moves(budget, "t", 60.0) == 2


def test_a_tenant_does_not_use_up_the_moves_of_another():
    budget = RetryBudget(0.0, floor=3)
    assert moves(budget, "a", 0.0) == 3
    assert moves(budget, "b", 0.0) == 3


def test_a_move_that_is_not_allowed_is_not_counted():
    budget = RetryBudget(0.5, floor=0)
    assert moves(budget, "t", 0.0) == 0
    for _ in range(10):
        budget.started("t", 1.0)
    assert moves(budget, "t", 1.0) == 5


def test_memory_is_bounded_by_the_minute():
    budget = RetryBudget(0.1, floor=2)
    for tick in range(10_000):
        budget.started("t", tick / 10)
    assert len(budget._tenants["t"]) <= 60
