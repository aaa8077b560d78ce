"""What must be there."""

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """Give back what is not None."""
    assert value is not None
    return value
