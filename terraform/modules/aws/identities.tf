locals {
  aws_policies = "arn:${local.partition}:iam::aws:policy"
  issuer       = trimprefix(aws_eks_cluster.this.identity[0].oidc[0].issuer, "https://")
  # Which service account of the cluster is which role; nothing else gets at either.
  service_accounts = {
    s3-csi     = "kube-system:s3-csi-driver-sa"
    ebs-csi    = "kube-system:ebs-csi-controller-sa"
    autoscaler = "kube-system:cluster-autoscaler"
  }
}

resource "aws_iam_role" "cluster" {
  name = "${var.name}-cluster"
  tags = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "eks.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.aws_policies}/AmazonEKSClusterPolicy"
}

resource "aws_iam_role" "node" {
  name = "${var.name}-node"
  tags = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"])

  role       = aws_iam_role.node.name
  policy_arn = "${local.aws_policies}/${each.value}"
}

resource "aws_iam_openid_connect_provider" "this" {
  url            = aws_eks_cluster.this.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
  tags           = local.tags
}

resource "aws_iam_role" "pod" {
  for_each = local.service_accounts

  name = "${var.name}-${each.key}"
  tags = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRoleWithWebIdentity"
      Principal = { Federated = aws_iam_openid_connect_provider.this.arn }
      Condition = {
        StringEquals = {
          "${local.issuer}:aud" = "sts.amazonaws.com"
          "${local.issuer}:sub" = "system:serviceaccount:${each.value}"
        }
      }
    }]
  })
}

# The driver that mounts the bucket; the service's own pods have no identity at all.
resource "aws_iam_role_policy" "s3_csi" {
  name   = "read-weights"
  role   = aws_iam_role.pod["s3-csi"].id
  policy = module.weights.read_policy
}

resource "aws_iam_role_policy_attachment" "ebs_csi" {
  role       = aws_iam_role.pod["ebs-csi"].name
  policy_arn = "${local.aws_policies}/service-role/AmazonEBSCSIDriverPolicy"
}

resource "aws_iam_role_policy" "autoscaler" {
  name = "scale-this-cluster"
  role = aws_iam_role.pod["autoscaler"].id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Look" # these actions know no resources
        Effect = "Allow"
        Action = [
          "autoscaling:DescribeAutoScalingGroups",
          "autoscaling:DescribeAutoScalingInstances",
          "autoscaling:DescribeLaunchConfigurations",
          "autoscaling:DescribeScalingActivities",
          "autoscaling:DescribeTags",
          "ec2:DescribeImages",
          "ec2:DescribeInstanceTypes",
          "ec2:DescribeLaunchTemplateVersions",
          "ec2:GetInstanceTypesFromInstanceRequirements",
        ]
        Resource = "*"
      },
      {
        Sid      = "Pools"
        Effect   = "Allow"
        Action   = ["eks:DescribeNodegroup"]
        Resource = "arn:${local.partition}:eks:*:${local.account}:nodegroup/${var.name}/*"
      },
      {
        Sid       = "Scale"
        Effect    = "Allow"
        Action    = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
        Resource  = "*"
        Condition = { StringEquals = { "aws:ResourceTag/k8s.io/cluster-autoscaler/${var.name}" = "owned" } }
      },
    ]
  })
}
