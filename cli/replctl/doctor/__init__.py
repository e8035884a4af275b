"""What `replctl doctor` looks at. Each check takes facts and gives findings; none starts a broker or mends anything."""
