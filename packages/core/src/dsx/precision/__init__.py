"""Which dtype each tensor has, loss scaling, and reports of numbers that left their range."""
