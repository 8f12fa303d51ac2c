"""What every room uses: arguments checked, files replaced whole, threads counted.  Imports nothing but `errors`."""
