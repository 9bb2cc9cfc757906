"""The intermediate representation: index polynomials, hashed scalars and tensor definitions."""
