"""What every package uses: arguments checked, files replaced whole, threads counted, the style of pages.

Imports nothing but `errors`."""
