from faults.conftest import faults  # noqa: F401
