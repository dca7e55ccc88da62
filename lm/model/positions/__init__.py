"""How a model knows where tokens stand: in line, by their distances, in trees."""
