"""One way to judge price files, shared by `fcfl data check` and the preparation."""
