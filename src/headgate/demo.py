"""What the demo (`demo.yaml`) is shown with."""

from __future__ import annotations

ORDER = '{"kind": "order", "id": 1, "user": {"email": "Ada@example.org"}, "total": 9.5}'
"""A payload that `demo-orders` makes a row of."""
EXAMPLES = {"demo-orders": ORDER}
"""By datasource."""
