"""The EROFS image format, by value."""
