"""Reports of drills, as far as tests hold them to it."""

from chairlift.evaluation.drill_report import Report


def broken(report: Report) -> list[str]:
    """Claims about what was answered that do not hold; how fast it was is no test's business."""
    return [
        f"{claim.text}: {claim.measured}, wanted {claim.bound}"
        for claim in report.claims
        if claim.relation == "=" and not claim.holds
    ]
