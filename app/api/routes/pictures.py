"""Charts as pictures by a link that was made for one of them: their description."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from app.alerts.picture_link import PATH
from app.api.deps import Responses, only_refusals
from app.api.pictures import PNG

LINK_PATH = f"{PATH}{{link}}"

# What `LinkedPictures` answers, for /openapi.json; nothing is routed by it.
described = APIRouter(tags=["charts"])

Link = Annotated[str, Path(description="As a message of an alert has it.", max_length=700)]

_PICTURE: Responses = {
    200: {
        "description": "The picture. It may be kept for an hour.",
        "content": {PNG: {"schema": {"type": "string", "format": "binary"}}},
    },
}


@described.get(
    LINK_PATH,
    operation_id="get_linked_picture",
    summary="See the picture that a link was made for",
    response_class=Response,
    responses={**_PICTURE, **only_refusals(404, 409, 421, 429, 500, 501, 503)},
    openapi_extra={"security": []},
)
def get_linked_picture(link: Link) -> None:
    """Takes no token: whoever has the link sees this one picture, for seven days.

    Messages of alerts have such links where pictures can be drawn (`paceline[png]`) and
    `PACELINE_PUBLIC_URL` is an https:// address. 404 is all that any other link gets.
    """
