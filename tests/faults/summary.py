"""The table at the end of a test run: faults tried, survived, and the work they cost."""


def pytest_terminal_summary(terminalreporter):
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    told = [value for r in reports for key, value in r.user_properties if key == "fault"]
    if not told:
        return
    rows: dict[str, list[int]] = {}
    for fault, *counts in told:
        rows[fault] = [sum(pair) for pair in zip(rows.get(fault, [0, 0, 0]), counts, strict=True)]
    width = max(map(len, rows))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'fault':{width}}   tried  survived  steps taken again")
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    for fault, (tried, survived, steps) in (*sorted(rows.items()), ("in all", total)):
        terminalreporter.write_line(f"{fault:{width}}  {tried:6}  {survived:8}  {steps:17}")
    for report in reports:
        for key, value in report.user_properties:
            if key == "figure":
                terminalreporter.write_line(value)
