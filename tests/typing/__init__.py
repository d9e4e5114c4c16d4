"""Messages of type checkers about programs that use holdfast, correctly and wrongly."""
