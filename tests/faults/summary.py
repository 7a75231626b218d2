"""The table at the end of a test run: faults tried, faults survived, steps repeated."""


def pytest_terminal_summary(terminalreporter):
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    recorded = [value for r in reports for key, value in r.user_properties if key == "fault"]
    if not recorded:
        return
    rows: dict[str, list[int]] = {}
    for fault, *counts in recorded:
        rows[fault] = [sum(pair) for pair in zip(rows.get(fault, [0, 0, 0]), counts, strict=True)]
    width = max(map(len, rows))
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'fault':{width}}   tried  survived  steps repeated")
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    for fault, (tried, survived, steps) in (*sorted(rows.items()), ("total", total)):
        terminalreporter.write_line(f"{fault:{width}}  {tried:6}  {survived:8}  {steps:14}")
    for report in reports:
        for key, value in report.user_properties:
            if key == "figure":
                terminalreporter.write_line(value)
