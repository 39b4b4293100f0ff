"""Print the path of the driver."""

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).with_name("fmm_driver.py"))
