"""What a kustomization comes to, by our reading and, where it is installed, by kustomize's own."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from checks.cluster_facts import MANIFESTS
from checks.kustomize import KustomizeError, Tree, load_all, render
from checks.manifests import OVERLAYS

ROOT = Path(__file__).parents[3]
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}\n"


def write(folder: Path, kustomization: str, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"kustomization": kustomization, **files}.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def by_name(objects: list[Tree]) -> dict[tuple[str, str], Tree]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which brings kustomize")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_makes_the_same(overlay: str, tmp_path: Path) -> None:
    folder = ROOT / MANIFESTS / "overlays" / overlay
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True
    )
    (tmp_path / "made.yaml").write_text(done.stdout, encoding="utf-8")
    assert by_name(render(folder)) == by_name(load_all(tmp_path / "made.yaml"))


def test_patches_change_the_object_that_they_name_and_one_place_of_an_anchor(
    tmp_path: Path,
) -> None:
    objects = "apiVersion: v1\nkind: K\nmetadata: {name: a}\nspec: {x: &x [1, {y: 2}], z: *x}\n"
    patch = yaml.safe_dump(
        [
            {"op": "replace", "path": "/spec/x/0", "value": 5},
            {"op": "add", "path": "/spec/x/-", "value": 6},
            {"op": "add", "path": "/spec/x/0", "value": 4},
            {"op": "remove", "path": "/spec/z/1"},
            {"op": "add", "path": "/metadata/a~1b", "value": "c"},
        ]
    )
    folder = write(
        tmp_path,
        "resources: [objects.yaml]\npatches: [{path: patch.yaml, target: {kind: K, name: a}}]\n",
        objects=objects,
        patch=patch,
    )
    (made,) = render(folder)
    assert made["spec"] == {"x": [4, 5, {"y": 2}, 6], "z": [1]}
    assert made["metadata"] == {"name": "a", "a/b": "c"}


def test_images_are_renamed_wherever_containers_are(tmp_path: Path) -> None:
    objects = (
        "kind: K\nmetadata: {name: a}\n"
        "spec: {deep: [{containers: [{image: app}, {image: 'other:1'}]}],\n"
        "  initContainers: [{image: 'app:2'}]}\n"
    )
    images = "images: [{name: app, newName: reg.example.com/app, newTag: '3'}]\n"
    (made,) = render(write(tmp_path, f"resources: [objects.yaml]\n{images}", objects=objects))
    assert made["spec"]["deep"][0]["containers"] == [
        {"image": "reg.example.com/app:3"},
        {"image": "other:1"},
    ]
    assert made["spec"]["initContainers"] == [{"image": "reg.example.com/app:3"}]


def test_a_folder_is_a_resource_and_the_namespace_is_put_on_what_has_one(tmp_path: Path) -> None:
    write(tmp_path / "base", "resources: [a.yaml]\n", a=CONFIG_MAP)
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n"
    folder = write(tmp_path / "over", "namespace: n\nresources: [../base, s.yaml]\n", s=space)
    made = by_name(render(folder))
    assert made["ConfigMap", "a"]["metadata"]["namespace"] == "n"
    assert "namespace" not in made["Namespace", "n"]["metadata"]


def test_config_maps_are_made_of_files(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "generatorOptions: {disableNameSuffixHash: true}\n"
        "configMapGenerator: [{name: m, files: [a.yaml], options: {labels: {l: v}}}]\n",
        a=CONFIG_MAP,
    )
    (made,) = render(folder)
    assert made["data"] == {"a.yaml": CONFIG_MAP} and made["metadata"]["labels"] == {"l": "v"}


@pytest.mark.parametrize(
    ("kustomization", "message"),
    [
        ("namePrefix: x-\n", "namePrefix: not followed"),
        ("resources: [gone.yaml]\n", r"gone\.yaml"),
        ("resources: [bad.yaml]\n", r"bad\.yaml"),
        (
            "resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap, name: b}}]\n",
            "there is no ConfigMap b",
        ),
        (
            "resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap, name: a}}]\n",
            "/data/y/z",
        ),
        ("configMapGenerator: [{name: m, files: [a.yaml]}]\n", "disableNameSuffixHash"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    tmp_path: Path, kustomization: str, message: str
) -> None:
    patch = "[{op: replace, path: /data/y/z, value: 1}]"
    folder = write(tmp_path, kustomization, a=CONFIG_MAP, p=patch, bad="a: [")
    with pytest.raises(KustomizeError, match=message):
        render(folder)
