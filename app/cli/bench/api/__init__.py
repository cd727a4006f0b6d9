"""How soon does the API answer what pages ask, with many jobs and windows stored?"""
