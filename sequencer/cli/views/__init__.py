"""What people see: tables, boards, pictures, each a function of what the library returns."""
