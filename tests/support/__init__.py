"""What tests share: networks, programs, files and processes."""
